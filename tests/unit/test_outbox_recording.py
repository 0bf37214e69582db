"""What goes through the outbox is, to the letter, what Celery would have published."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery, chain, signals
from celery.canvas import Signature
from kombu.entity import Exchange, Queue

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.recovery.message_note import republish
from celery_singleton_lock.recovery.outbox.recording import record

ETA = datetime(2026, 11, 18, 12, tzinfo=UTC)


def body(*args: Any, **kwargs: Any) -> None: ...


@pytest.fixture
def app() -> Celery:
    # The result backend must not be asked for anything: nobody is at that address.
    app = Celery("shop", broker="memory://", backend="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(
        singleton_lock_url="memory://",
        task_queues=[Queue("celery"), Queue("other", Exchange("topics", "topic"), "other.#")],
        task_routes={"shop.routed": {"queue": "other", "routing_key": "other.key"}},
    )
    make = {"shared": False, "lazy": False}
    app.task(name="shop.plain", **make)(body)
    app.task(name="shop.routed", ignore_result=True, **make)(body)
    app.task(name="shop.limited", time_limit=9, soft_time_limit=5, expires=60, **make)(body)
    app.task(name="shop.single", base=SingletonTask, on_duplicate="raise", **make)(body)
    return app


CALLS: dict[str, Callable[[Any], tuple[Signature, dict[str, Any]]]] = {
    "plain": lambda tasks: (tasks["shop.plain"].s(1, two=[2]), {}),
    "routed": lambda tasks: (tasks["shop.routed"].s(), {}),
    "limited": lambda tasks: (tasks["shop.limited"].s(), {"expires": ETA}),
    "options": lambda tasks: (
        tasks["shop.plain"].s(),
        {"queue": "other", "priority": 3, "headers": {"mine": 1}, "eta": ETA, "shadow": "s"},
    ),
    "compressed": lambda tasks: (tasks["shop.plain"].s("x" * 500), {"compression": "zlib"}),
    "linked": lambda tasks: (
        tasks["shop.plain"].s(1),
        {"link": tasks["shop.routed"].s(2), "link_error": tasks["shop.plain"].si()},
    ),
    "chain": lambda tasks: (chain(tasks["shop.plain"].s(1), tasks["shop.routed"].s(2)), {}),
    "result ignored": lambda tasks: (tasks["shop.plain"].s(), {"ignore_result": True}),
    "on_duplicate": lambda tasks: (tasks["shop.single"].s(1), {}),
}


@pytest.fixture
def exchange_of(app: Celery) -> Iterator[Callable[[str], Any]]:
    with app.connection_for_write() as connection:
        for queue in app.amqp.queues.values():
            queue(connection.default_channel).declare()
            # The broker is one for all tests of this process.
            queue(connection.default_channel).purge()

        def receive(queue: str) -> Any:
            return app.amqp.queues[queue](connection.default_channel).get(no_ack=True)

        yield receive


@pytest.mark.parametrize("call", CALLS)
def test_message_is_what_celery_would_have_published(
    app: Celery, exchange_of: Callable[[str], Any], call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = "other" if call in ("routed", "options") else "celery"
    signature, options = CALLS[call](app.tasks)
    note = record(signature.clone(), (), {}, {**options, "task_id": "run"})
    with app.producer_pool.acquire(block=True) as producer:
        republish(producer, note, compression=note["compression"])
    ours = exchange_of(queue)
    # The one thing that it may not do here: listen for the result.
    monkeypatch.setattr(type(app.backend), "on_task_call", lambda *_: None)
    signature, options = CALLS[call](app.tasks)
    signature.apply_async(task_id="run", **options)
    theirs = exchange_of(queue)
    assert _without_ids(ours.headers) == _without_ids(theirs.headers)
    assert _plain(ours.payload) == _plain(theirs.payload)
    for name in ("content_type", "content_encoding"):
        assert getattr(ours, name) == getattr(theirs, name)
    named = ("priority", "delivery_mode", "reply_to")
    assert [ours.properties.get(name) for name in named] == [
        theirs.properties.get(name) for name in named
    ]


def _without_ids(headers: dict[str, Any]) -> dict[str, Any]:
    """A chain has ids of its own, which are new each time."""
    return {name: value for name, value in headers.items() if name not in ("id", "root_id")}


def _plain(payload: Any) -> str:
    args, kwargs, embedded = payload
    for step in embedded["chain"] or ():
        step["options"] = sorted(step["options"])
    return repr((args, kwargs, embedded))


def test_receivers_are_told_before_and_not_that_it_was_published(app: Celery) -> None:
    told: list[str] = []

    def before(headers: dict[str, Any], **_: Any) -> None:
        headers["trace"] = "t1"
        told.append("before")

    def after(**_: Any) -> None:
        told.append("after")

    signals.before_task_publish.connect(before)
    signals.after_task_publish.connect(after)
    try:
        note = record(app.tasks["shop.plain"].s(), (), {}, {"task_id": "run"})
    finally:
        signals.before_task_publish.disconnect(before)
        signals.after_task_publish.disconnect(after)
    assert told == ["before"]
    assert note["headers"]["trace"] == "t1"
