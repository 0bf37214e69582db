"""`singleton_lock` on a real server: as context manager and decorator, for functions and coroutines."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import timedelta

import pytest
from celery import Celery

from celery_singleton_lock import (
    ConfigurationError,
    LeaseLost,
    LeaseReleased,
    LockNotAcquired,
    StoreUnavailable,
    singleton_lock,
)
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def app(server: RedisServer) -> Celery:
    app = Celery("locks", broker=server.url, set_as_current=False)
    app.conf.singleton_slot_ttl = 0.75
    return app


def test_block_holds_the_lock_beyond_its_ttl_and_gives_it_back(app: Celery) -> None:
    with singleton_lock("k", app=app, ttl=1) as lease:
        time.sleep(1.5)
        lease.ensure_held()
        with pytest.raises(LockNotAcquired) as refused, singleton_lock("k", app=app):
            raise AssertionError("let in twice")
        assert refused.value.holder == lease.owner
    with pytest.raises(LeaseReleased):
        lease.ensure_held()
    with singleton_lock("k", app=app) as next_lease:
        assert next_lease.fence > lease.fence
    assert parts_of(app).keep_alive.leases == []


def test_people_can_read_who_holds_the_lock(app: Celery) -> None:
    with singleton_lock("k", app=app):
        [record] = parts_of(app).store.peek(["lock:k"])
    assert record is not None
    assert (record.note["host"], record.note["pid"]) == (socket.gethostname(), os.getpid())


def test_waiter_gets_the_lock_soon_after_it_is_given_back(app: Celery) -> None:
    entered: list[str] = []

    def wait() -> None:
        with singleton_lock("k", app=app, wait=20):
            entered.append("waiter")

    waiter = threading.Thread(target=wait)
    with singleton_lock("k", app=app):
        waiter.start()
        time.sleep(0.5)
        entered.append("holder")
        released_at = time.monotonic()
    waiter.join(20)
    assert entered == ["holder", "waiter"]
    # Woken, not polling: the holder's lease would have had half a minute to go.
    assert time.monotonic() - released_at < 5


def test_waiting_ends_with_lock_not_acquired(app: Celery) -> None:
    with singleton_lock("k", app=app):
        began = time.monotonic()
        with (
            pytest.raises(LockNotAcquired, match=r"'k'.*held by"),
            singleton_lock("k", app=app, wait=timedelta(seconds=0.5)),
        ):
            raise AssertionError("let in twice")
        assert 0.5 <= time.monotonic() - began < 5


def test_exception_in_the_block_gives_the_lock_back(app: Celery) -> None:
    with pytest.raises(ZeroDivisionError), singleton_lock("k", app=app):
        _ = 1 / 0
    with singleton_lock("k", app=app):
        pass


def test_leaving_a_lost_lock_raises_unless_the_block_failed(app: Celery) -> None:
    @singleton_lock("k", app=app)
    def lose_and(divide: bool) -> None:
        parts_of(app).store.force_release("lock:k", who="tester", why="to see")
        if divide:
            _ = 1 / 0

    with pytest.raises(LeaseLost):
        lose_and(divide=False)
    with pytest.raises(ZeroDivisionError):
        lose_and(divide=True)


def test_decorated_function_runs_alone_and_may_call_others(app: Celery) -> None:
    inside: list[int] = []

    @singleton_lock("k", app=app, wait=20)
    def work(number: int) -> int:
        inside.append(number)
        assert len(inside) == 1
        time.sleep(0.05)
        inside.remove(number)
        return number

    results: list[int] = []
    threads = [threading.Thread(target=lambda n=n: results.append(work(n))) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == list(range(6))
    assert work.__name__ == "work"


def test_decorated_coroutines_run_one_at_a_time_without_blocking_the_loop(app: Celery) -> None:
    inside: list[int] = []

    @singleton_lock("k", app=app, wait=None)
    async def work(number: int) -> int:
        inside.append(number)
        assert len(inside) == 1
        await asyncio.sleep(0.02)
        inside.remove(number)
        return number

    async def main() -> list[int]:
        return await asyncio.gather(*(work(n) for n in range(20)))

    assert asyncio.run(main()) == list(range(20))


def test_cancelled_coroutine_gives_the_lock_back(app: Celery) -> None:
    async def hold(is_inside: asyncio.Event) -> None:
        async with singleton_lock("k", app=app):
            is_inside.set()
            await asyncio.sleep(60)

    async def wait() -> None:
        async with singleton_lock("k", app=app, wait=60):
            raise AssertionError("let in twice")

    async def main() -> None:
        is_inside = asyncio.Event()
        holding = asyncio.create_task(hold(is_inside))
        await is_inside.wait()
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0.5)
        for task in (waiting, holding):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        async with singleton_lock("k", app=app, wait=1):
            pass

    asyncio.run(main())


def test_lock_object_is_for_one_block_at_a_time(app: Celery) -> None:
    lock = singleton_lock("k", app=app)
    with lock, pytest.raises(ConfigurationError, match="anew"):
        lock.__enter__()
    with lock:
        pass


def test_store_that_is_away_raises_at_once_or_after_the_wait(app: Celery) -> None:
    with RedisServer() as gone:
        away = Celery("away", broker=gone.url, set_as_current=False)
        away.conf.singleton_slot_ttl = 1
    with pytest.raises(StoreUnavailable), singleton_lock("k", app=away):
        raise AssertionError("let in without a store")
    began = time.monotonic()
    with pytest.raises(StoreUnavailable), singleton_lock("k", app=away, wait=0.5):
        raise AssertionError("let in without a store")
    assert time.monotonic() - began >= 0.5


def test_leaving_raises_if_the_lease_ran_out_while_the_store_was_away() -> None:
    with RedisServer() as server:
        app = Celery("away", broker=server.url, set_as_current=False)
        app.conf.singleton_slot_ttl = 0.75

        @singleton_lock("k", app=app, ttl=1)
        def work(longer: float) -> None:
            server.kill()
            time.sleep(longer)

        with pytest.raises(LeaseLost):
            work(1.2)
        server.start()
        work(0)  # it was ours to the end: nothing to raise


def test_ttl_too_short_to_be_renewed_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="two renewals"):
        singleton_lock("k", app=app, ttl=0.5).__enter__()


@pytest.mark.parametrize(
    "arguments",
    [{"key": ""}, {"ttl": 0}, {"ttl": -1}, {"ttl": "soon"}, {"ttl": float("nan")}, {"wait": -1}],
    ids=str,
)
def test_lock_that_cannot_work_is_refused_where_it_is_written(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        singleton_lock(**({"key": "k"} | arguments))  # type: ignore[arg-type]


def test_current_app_is_used_where_none_is_named(server: RedisServer) -> None:
    app = Celery("current", broker=server.url)
    app.set_current()
    with singleton_lock("of the current app"):
        [record] = parts_of(app).store.peek(["lock:of the current app"])
        assert record is not None
