"""Good messages pass, and cost next to nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from celery import Celery
from kombu.message import Message

from celery_singleton_lock.worker.flaws import flaw_of
from celery_singleton_lock.worker.poison import PoisonStep, install


def message(body: Any, headers: Any) -> Message:
    return Message(
        body=json.dumps(body),
        headers=headers,
        content_type="application/json",
        content_encoding="utf-8",
    )


GOOD_BODIES = [
    [[], {}, {}],
    [[1], {"a": 1}, {"callbacks": None, "chord": None}],
    [[], {}, None],
]


@pytest.mark.parametrize("body", GOOD_BODIES)
@pytest.mark.parametrize("limits", [None, [], [None, None], [1, 2.5], [None, 3]])
def test_message_as_celery_sends_it_has_no_flaw(body: Any, limits: Any) -> None:
    assert flaw_of(message(body, {"id": "1", "task": "t", "timelimit": limits})) is None


@pytest.mark.parametrize("protocol", [1, 2])
def test_message_that_celery_makes_has_no_flaw(protocol: int) -> None:
    app = Celery("flaws", set_as_current=False)
    app.conf.task_protocol = protocol
    made = app.amqp.create_task_message("id", "task", (1,), {"a": 2}, expires=10, time_limit=5)
    assert flaw_of(message(made.body, made.headers)) is None


def test_message_of_both_protocols_has_no_flaw() -> None:
    both = {"task": "t", "id": "1", "args": [1], "kwargs": {}}
    assert flaw_of(message(both, {"task": "t", "id": "1"})) is None


def test_what_celery_itself_notices_is_left_to_it() -> None:
    assert flaw_of(message({"hello": "world"}, {})) is None
    assert flaw_of(message([[], {}, {}], {})) is None
    unreadable = Message(body="{", headers={"task": "t"}, content_type="application/json")
    assert flaw_of(unreadable) is None


@pytest.mark.parametrize(
    ("body", "headers", "told"),
    [
        ([[], {}, {}], {"task": "t"}, "id must be a text, not nothing"),
        (
            [[], [], {}],
            {"task": "t", "id": "1"},
            "kwargs must be a mapping of names to values, not a list",
        ),
        ({"task": "t", "args": []}, {}, "id must be a text, not nothing"),
    ],
)
def test_flaw_is_told_in_words(body: Any, headers: Any, told: str) -> None:
    assert flaw_of(message(body, headers)) == told


def test_installing_twice_is_once_and_opens_no_connection() -> None:
    app = Celery("flaws", broker="redis://127.0.0.1:1/0", set_as_current=False)
    install(app)
    install(app)
    assert app.steps["consumer"] == {PoisonStep}
