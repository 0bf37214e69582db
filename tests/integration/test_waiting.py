"""Messages that wait for their job are offered as soon as it is free, the one that came first first."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from celery import Celery
from celery.worker import state

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.core.headers import AGAIN
from celery_singleton_lock.core.models import Granted, Lease, LeaseRequest, Release
from celery_singleton_lock.leases.memory import MemoryLeaseStore
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker import waiting
from celery_singleton_lock.worker.asking import task_key_of
from celery_singleton_lock.worker.parts import parts_of
from celery_singleton_lock.worker.request import COUNTS
from celery_singleton_lock.worker.run import Keep
from celery_singleton_lock.worker.waiting import Place
from tests.end_to_end.beats import until

from .workers import LEAVES_CONNECTIONS, Gate, define, queued, unacknowledged, working

LONG = timedelta(minutes=5)
pytestmark = LEAVES_CONNECTIONS


@pytest.fixture
def locks() -> Iterator[RedisServer]:
    """Nobody listens here but the worker of the test."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def app(app: Celery, locks: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """Whose workers offer nothing again by themselves."""
    monkeypatch.setattr(waiting, "pause_before_offer", lambda *_, **__: 600.0)
    app.conf.singleton_lock_url = locks.url
    return app


def define_job(app: Celery, gate: Gate | None = None, **options: Any) -> tuple[Any, list[int]]:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", unique_on=(), **options)
    def body(number: int) -> None:
        calls.append(number)
        if gate is not None and number == 0:
            gate.enter()

    return body, calls


def hold_job(app: Celery, task: Any) -> Lease:
    """As a run of another worker does."""
    key = task_key_of(task, (0,), {}, task.singleton_options)
    assert key is not None
    [answer] = parts_of(app).store.acquire([LeaseRequest(key, "another", LONG)])
    assert isinstance(answer, Granted)
    return answer.lease


def let_go(app: Celery, lease: Lease) -> None:
    assert parts_of(app).store.release([Release(lease)]) == [True]


def queue_up(task: Any, gate: Gate, count: int) -> None:
    """The first is at work, and the others wait behind it."""
    for number in range(count):
        before = COUNTS["kept"]
        task.delay(number)
        if number == 0:
            assert gate.wait_for_entry()
        else:
            until_kept(before + 1)


def is_told(locks: RedisServer, count: int = 1) -> bool:
    client: Any = locks.connect()
    return int(client.pubsub_numpat()) == count


def until_kept(count: int) -> None:
    until(lambda: COUNTS["kept"] == count)


def until_called(calls: list[int], count: int) -> None:
    until(lambda: len(calls) == count)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_run_begins_when_another_worker_lets_go_of_its_job(
    app: Celery, server: RedisServer, locks: RedisServer, pool: str
) -> None:
    task, calls = define_job(app, overlap="queue")
    lease = hold_job(app, task)
    before = COUNTS["kept"]
    with working(app, pool=pool, concurrency=1):
        task.delay(1)
        until(lambda: COUNTS["kept"] == before + 1 and is_told(locks))
        assert calls == []
        let_go(app, lease)
        until(lambda: queued(server) == 0 == unacknowledged(server))
    assert calls == [1]


def test_runs_of_one_job_begin_in_the_order_in_which_they_came(
    app: Celery, server: RedisServer, locks: RedisServer
) -> None:
    """Each end of one is told to the next; those of another job stay where they are."""
    task, calls = define_job(app, overlap="queue")
    other, other_calls = define_other(app)
    lease, other_lease = hold_job(app, task), hold_job(app, other)
    with working(app):
        for number in range(1, 6):
            before = COUNTS["kept"]
            (task if number != 3 else other).delay(number)
            until_kept(before + 1)
        until(lambda: is_told(locks))
        let_go(app, lease)
        until(lambda: calls == [1, 2, 4, 5])
        assert other_calls == []
        let_go(app, other_lease)
        until(lambda: other_calls == [3])
        until(lambda: queued(server) == 0 == unacknowledged(server))


def define_other(app: Celery) -> tuple[Any, list[int]]:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="other", unique_on=(), overlap="queue")
    def body(number: int) -> None:
        calls.append(number)

    return body, calls


def test_run_of_a_dead_worker_begins_when_its_job_is_free(
    app: Celery, server: RedisServer, locks: RedisServer
) -> None:
    """It is asked for nothing while it waits, so that its last owner may still record its end."""
    task, calls = define_job(app)
    lease = hold_job(app, task)
    dead = LeaseRequest("run:r", "dead", timedelta(milliseconds=10), position=1)
    assert isinstance(parts_of(app).store.acquire([dead])[0], Granted)
    before = COUNTS["kept"]
    with working(app):
        task.apply_async((1,), task_id="r", headers={AGAIN: True})
        until(lambda: COUNTS["kept"] == before + 1 and is_told(locks))
        let_go(app, lease)
        until(lambda: queued(server) == 0 == unacknowledged(server))
    assert calls == [1]


def test_worker_that_was_cut_off_from_the_store_hears_again(app: Celery, locks: RedisServer) -> None:
    task, calls = define_job(app, overlap="queue")
    client: Any = locks.connect()
    lease = hold_job(app, task)
    with working(app):
        task.delay(1)
        until(lambda: is_told(locks))
        client.client_kill_filter(_type="pubsub")
        until(lambda: is_told(locks))
        let_go(app, lease)
        until(lambda: calls == [1])


def test_store_that_cannot_tell_is_not_needed_within_one_worker(
    app: Celery, server: RedisServer, tmp_path: Path
) -> None:
    app.conf.singleton_lock_url = f"sqlite:///{tmp_path}/locks.db"
    with Gate() as gate:
        task, calls = define_job(app, gate, overlap="queue")
        with working(app):
            queue_up(task, gate, 4)
            gate.open()
            until(lambda: calls == [0, 1, 2, 3])
            until(lambda: queued(server) == 0 == unacknowledged(server))


def test_next_worker_of_the_same_process_is_told_as_well(app: Celery, locks: RedisServer) -> None:
    task, calls = define_job(app, overlap="queue")
    for number in range(2):
        lease = hold_job(app, task)
        with working(app):
            task.delay(number)
            until(lambda: is_told(locks))
            let_go(app, lease)
            until_called(calls, number + 1)


def test_user_who_may_not_listen_is_named_once_and_runs_of_one_worker_wake_each_other(
    app: Celery, server: RedisServer, locks: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    client: Any = locks.connect()
    client.execute_command("ACL", "SETUSER", "locks", "on", ">password", "~*", "+@all", "-psubscribe")
    app.conf.singleton_lock_url = locks.url.replace("redis://", "redis://locks:password@")
    with Gate() as gate:
        task, calls = define_job(app, gate, overlap="queue")
        with working(app):
            queue_up(task, gate, 4)
            until(lambda: "releases_not_heard" in caplog.text)
            gate.open()
            until(lambda: calls == [0, 1, 2, 3])
            until(lambda: queued(server) == 0 == unacknowledged(server))
    assert caplog.text.count("releases_not_heard") == 1


class Pool:
    def __init__(self) -> None:
        self.killed: list[int] = []

    def terminate_job(self, pid: int, signal: Any = None) -> None:
        self.killed.append(pid)


def test_who_revokes_a_run_that_waits_kills_nobody(app: Celery) -> None:
    """The child to which it was offered executes another one by now."""
    task, _ = define_job(app, overlap="queue")
    lease, before, pool = hold_job(app, task), COUNTS["kept"], Pool()
    with working(app):
        task.delay(1)
        until_kept(before + 1)
        [request] = state.scheduled_requests
        request.terminate(pool, "KILL")
        let_go(app, lease)
    assert pool.killed == []


class Waiter:
    """As much of a request as is looked at to find out which of two is to wait."""

    attempt_name = ("run", 0, 0)
    kept_since, offers, line, id, _eta_timer_entry = 0.0, 0, None, "run", "entry"
    task: Any = SimpleNamespace(name="t", singleton_options=SimpleNamespace(lock_wait=None))

    def __init__(self, channel: object, tag: int) -> None:
        self.message = SimpleNamespace(channel=channel, delivery_tag=tag)


@pytest.mark.parametrize(
    ("first", "second", "place", "remaining"),
    [
        (("new", 1), ("new", 2), Place.NOT_NEEDED, 0),
        (("old", 1), ("new", 1), Place.WAITS, 1),
        (("new", 1), ("old", 1), Place.STALE, 0),
    ],
    ids=["copies", "delivered again while it waited", "delivered again while it was executed"],
)
def test_of_two_messages_of_one_attempt_the_one_waits_that_can_be_acknowledged(
    first: tuple[str, int], second: tuple[str, int], place: Place, remaining: int
) -> None:
    consumer: Any = MagicMock()
    consumer.task_consumer.channel = "new"
    line = waiting.Waiting(MemoryLeaseStore())
    pair = [Waiter(*first), Waiter(*second)]
    keep = Keep("held", "x", LONG)
    try:
        assert line.add(pair[0], keep, consumer) is Place.WAITS
        assert line.add(pair[1], keep, consumer) is place
        assert list(state.scheduled_requests) == [pair[remaining]]
        qos = consumer.qos
        assert qos.increment_eventually.call_count - qos.decrement_eventually.call_count == 1
    finally:
        state.reset_state()


def test_nobody_listens_when_nothing_has_waited_for_a_while(
    app: Celery, locks: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "_LISTENS_ON_S", 0.5)
    task, calls = define_job(app, overlap="queue")
    with working(app):
        for number in range(2):
            lease = hold_job(app, task)
            task.delay(number)
            until(lambda: is_told(locks))
            let_go(app, lease)
            until_called(calls, number + 1)
            until(lambda: is_told(locks, 0))
    assert calls == [0, 1]
