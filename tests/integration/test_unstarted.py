"""Messages that a real broker lost are published again by beat, and executed by real workers, once."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection

from celery_singleton_lock import SingletonScheduler, SingletonTask, once
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer
from tests.end_to_end.beats import until

from .workers import LEAVES_CONNECTIONS, define, working

WITHIN = 3.0
pytestmark = LEAVES_CONNECTIONS


@pytest.fixture(params=["valkey", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest) -> str:
    server: RedisServer | RabbitMQServer = request.getfixturevalue(request.param)
    return server.url


@pytest.fixture
def app(broker_url: str, valkey: RedisServer, request: pytest.FixtureRequest) -> Celery:
    name = f"unstarted-{time.monotonic_ns()}"
    app = Celery(name, broker=broker_url, set_as_current=False)
    app.conf.update(
        singleton_lock_url=valkey.url,
        singleton_key_prefix=name,
        singleton_slot_ttl=0.75,
        singleton_start_within=WITHIN,
        task_default_queue=name,
        worker_prefetch_multiplier=1,
    )
    return app


@contextmanager
def beating(app: Celery, **entries: Any) -> Iterator[None]:
    app.conf.beat_schedule = entries
    scheduler, end = SingletonScheduler(app), threading.Event()

    def tick() -> None:
        while not end.wait(min(scheduler.tick(), 0.1)):
            pass

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
        scheduler.close()


def taken(app: Celery) -> Any:
    """The next message of the queue, which is then nowhere any more."""
    found: list[Any] = []

    def take() -> bool:
        with Connection(app.conf.broker_url) as connection:
            channel: Any = connection.default_channel
            queue = app.conf.task_default_queue
            channel.queue_declare(queue, durable=True, auto_delete=False)
            message = channel.basic_get(queue, no_ack=True)
            found.extend([channel.message_to_python(message)] if message else [])
        return bool(found)

    until(take)
    return found[0]


def soon() -> datetime:
    return datetime.now(UTC) + timedelta(seconds=1.5)


def test_run_whose_message_was_lost_is_executed_once_like_all_others(app: Celery) -> None:
    runs: list[str] = []

    @define(app, base=SingletonTask, bind=True, name="shop.tick", unique_on=())
    def body(self: Any) -> None:
        runs.append(self.current_run.id)

    with beating(app, e={"task": "shop.tick", "schedule": 1.0, "catch_up": "all"}):
        lost = taken(app).headers["id"]
        with working(app, concurrency=2):
            until(lambda: lost in runs)
            until(lambda: len(runs) >= 6)
    assert set(Counter(runs).values()) == {1}


def test_copy_says_that_it_is_one_and_expires_when_the_first_message_would_have(app: Celery) -> None:
    @define(app, base=SingletonTask, name="shop.tick")
    def body() -> None: ...

    entry = {"task": "shop.tick", "schedule": once(soon()), "options": {"expires": 60}}
    with beating(app, e=entry):
        first, again = taken(app), taken(app)
    assert again.headers["id"] == first.headers["id"]
    assert again.headers["singleton_slot"] == first.headers["singleton_slot"]
    assert not first.headers.get("singleton_again")
    assert again.headers["singleton_again"] is True
    assert again.headers["singleton_in_turn"] is True
    expiries = [datetime.fromisoformat(each.headers["expires"]) for each in (first, again)]
    assert abs(expiries[1] - expiries[0]) < timedelta(seconds=WITHIN / 2)


def _does_nothing() -> None: ...


@pytest.mark.parametrize(
    "options",
    [{}, {"base": SingletonTask, "when_store_down": "run"}],
    ids=["a plain task", "a task that may be executed without a record"],
)
def test_run_of_which_nobody_can_tell_whether_it_was_started_is_left_alone(
    app: Celery, options: dict[str, Any]
) -> None:
    define(app, name="shop.tick", **options)(_does_nothing)
    with beating(app, e={"task": "shop.tick", "schedule": once(soon())}):
        taken(app)
        time.sleep(WITHIN + 2)
    with Connection(app.conf.broker_url) as connection:
        assert connection.default_channel.basic_get(app.conf.task_default_queue, no_ack=True) is None
