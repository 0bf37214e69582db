"""The short way sends what Celery itself would send, to the letter."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task, signals
from celery.utils.saferepr import saferepr
from hypothesis import given
from hypothesis import strategies as st
from kombu.entity import Queue

from celery_singleton_lock.beat.plain_message import PlainMessages, text_of
from celery_singleton_lock.testing.servers import RedisServer

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "queue": {"queue": "other"},
    "routing": {"exchange": "topics", "routing_key": "a.b"},
    "priority": {"priority": 5},
    "serializer": {"serializer": "json"},
    "compression": {"compression": "zlib"},
    "headers": {"headers": {"tenant": "x"}},
}
CHANGES = ("delivery_tag", "origin", "reply_to")


def work(a: int, b: int = 2) -> None: ...


class CustomTask(Task):  # type: ignore[misc]
    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["", "with events"])
def app(server: RedisServer, request: pytest.FixtureRequest) -> Celery:
    app = Celery("plain", broker=server.url, set_as_current=False)
    app.conf.task_queues = [Queue("celery"), Queue("other"), Queue("routed")]
    app.conf.task_routes = {"plain.routed": "routed"}
    app.conf.task_send_sent_event = request.param
    app.conf.task_create_missing_queues = True

    app.task(name="plain.limited", time_limit=60, soft_time_limit=50, ignore_result=True)(work)
    app.task(name="plain.routed", serializer="json")(work)
    app.task(name="plain.expiring", expires=30)(work)
    app.task(name="plain.custom", base=CustomTask)(work)
    app.task(name="plain.shadowed", shadow_name=lambda *_: "another name")(work)
    app.task(name="plain.inverted", time_limit=1, soft_time_limit=2)(work)
    return app


def sent(server: RedisServer) -> list[Any]:
    """Everything that lies in any queue, without what differs between any two messages."""
    client: Any = server.connect()
    messages = []
    for queue in sorted(client.scan_iter(_type="list")):
        for text in client.lrange(queue, 0, -1):
            message = json.loads(text)
            for part in (message["properties"], message["headers"]):
                for name in CHANGES:
                    part.pop(name, None)
            messages.append((queue, message))
    client.flushall()
    return messages


def send_as_celery(
    app: Celery, name: str, args: list[Any], kwargs: dict[str, Any], options: dict[str, Any]
) -> None:
    task = app.tasks.get(name)
    given = options | {"task_id": "0-1-2", "retry": False}
    with app.producer_or_acquire() as producer:
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **given)
        else:
            app.send_task(name, args, kwargs, producer=producer, **given)


def send_the_short_way(
    app: Celery,
    name: str,
    args: list[Any],
    kwargs: dict[str, Any],
    options: dict[str, Any],
    messages: PlainMessages | None = None,
) -> bool:
    messages = messages or PlainMessages(app)
    headers = options.get("headers", {})
    with app.producer_or_acquire() as producer:
        return messages.send(producer, name, args, kwargs, options, task_id="0-1-2", headers=headers)


@pytest.mark.parametrize("name", ["plain.limited", "plain.routed", "plain.unknown"])
@pytest.mark.parametrize("options", OPTIONS)
def test_short_way_sends_what_celery_sends(
    app: Celery, server: RedisServer, name: str, options: str
) -> None:
    send_as_celery(app, name, [1], {"b": 3}, OPTIONS[options])
    expected = sent(server)
    assert send_the_short_way(app, name, [1], {"b": 3}, OPTIONS[options])
    assert expected or options == "routing"
    assert sent(server) == expected


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ([], {}),
        (["it's", b"x", None], {}),
        ([1.5, [2]], {"x": (1,)}),
        ([10**2000], {}),
        (["a" * 2000], {}),
    ],
    ids=["none", "text", "nested", "large", "long"],
)
def test_short_way_shows_the_arguments_as_celery_does(
    app: Celery, server: RedisServer, args: list[Any], kwargs: dict[str, Any]
) -> None:
    send_as_celery(app, "plain.unknown", args, kwargs, {})
    expected = sent(server)
    assert send_the_short_way(app, "plain.unknown", args, kwargs, {})
    assert sent(server) == expected != []


def test_messages_of_a_kind_differ_by_their_arguments_and_headers(
    app: Celery, server: RedisServer
) -> None:
    each: list[tuple[list[Any], dict[str, Any]]] = [
        ([1], {"headers": {"tenant": "x"}}),
        ([2], {}),
        ([3], {"queue": "other"}),
        ([4], {"queue": "celery", "priority": 3}),
    ]
    for args, options in each:
        send_as_celery(app, "plain.limited", args, {}, options)
    expected = sent(server)
    messages = PlainMessages(app)
    for args, options in each:
        assert send_the_short_way(app, "plain.limited", args, {}, options, messages)
    assert sent(server) == expected
    assert len(expected) == 4


def test_router_that_decides_by_the_arguments_is_asked_for_every_message(
    app: Celery, server: RedisServer
) -> None:
    def by_tenant(name: str, args: Any, kwargs: Any, options: Any, **_: Any) -> dict[str, str]:
        return {"queue": f"tenant-{args[0]}"}

    app.conf.task_routes = (by_tenant,)
    messages = PlainMessages(app)
    for tenant in (1, 2):
        assert send_the_short_way(app, "plain.unknown", [tenant], {}, {}, messages)
    assert [queue for queue, _ in sent(server)] == ["tenant-1", "tenant-2"]


def test_receiver_of_a_signal_may_change_the_message(app: Celery, server: RedisServer) -> None:
    def stamp(headers: dict[str, Any], **_: Any) -> None:
        headers["stamp"] = headers["id"]

    signals.before_task_publish.connect(stamp)
    try:
        assert send_the_short_way(app, "plain.unknown", [1], {}, {})
    finally:
        signals.before_task_publish.disconnect(stamp)
    assert [message["headers"]["stamp"] for queue, message in sent(server) if queue == "celery"] == [
        "0-1-2"
    ]


def test_setting_that_changes_is_seen_by_the_next_batch(app: Celery, server: RedisServer) -> None:
    assert send_the_short_way(app, "plain.unknown", [1], {}, {})
    app.conf.update(task_routes={"plain.unknown": "other"})
    assert send_the_short_way(app, "plain.unknown", [1], {}, {})
    assert [queue for queue, _ in sent(server) if "celeryev" not in queue] == ["celery", "other"]


@pytest.mark.parametrize("name", ["plain.expiring", "plain.custom", "plain.shadowed", "plain.inverted"])
def test_task_of_its_own_kind_goes_the_long_way(app: Celery, server: RedisServer, name: str) -> None:
    assert not send_the_short_way(app, name, [1], {}, {})
    assert sent(server) == []


@pytest.mark.parametrize("option", ["expires", "countdown", "eta", "link", "stamped_headers"])
def test_option_that_is_not_plain_goes_the_long_way(app: Celery, option: str) -> None:
    assert not send_the_short_way(app, "plain.unknown", [1], {}, {option: 1})


@pytest.mark.parametrize("wrapped", ["send_task", "apply_async"])
def test_nobody_who_wraps_celerys_calls_is_passed_by(
    app: Celery, monkeypatch: pytest.MonkeyPatch, wrapped: str
) -> None:
    owner: Any = app if wrapped == "send_task" else Task
    original = getattr(owner, wrapped)

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs)

    assert send_the_short_way(app, "plain.limited", [1], {}, {})
    monkeypatch.setattr(owner, wrapped, traced)
    assert not send_the_short_way(app, "plain.limited", [1], {}, {})


def test_wrong_arguments_are_refused_as_by_a_call(app: Celery) -> None:
    with pytest.raises(TypeError):
        send_the_short_way(app, "plain.limited", [], {"c": 1}, {})


numbers = st.integers() | st.floats() | st.booleans()


@given(st.lists(numbers) | st.lists(numbers | st.none() | st.text() | st.lists(numbers)))
def test_text_of_arguments_is_celerys(args: list[Any]) -> None:
    assert text_of(args, 100, 3) == saferepr(args, 100, maxlevels=3)
