"""Keep-alive on a real server: leases that live on, and holders that are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from celery_singleton_lock import (
    Granted,
    Lease,
    LeaseLost,
    LeaseRequest,
    LeaseStore,
    Release,
    StoreUnavailable,
    open_store,
)
from celery_singleton_lock.leases.memory import MemoryLeaseStore
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.keep_alive import KeepAlive

TTL = timedelta(seconds=1)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(persistent=True) as server:
        yield server


@pytest.fixture
def store(server: RedisServer) -> Iterator[LeaseStore]:
    store = open_store(server.url, timeout=timedelta(seconds=0.3))
    yield store
    store.close()


@pytest.fixture
def keep_alive(store: LeaseStore) -> KeepAlive:
    return KeepAlive(store)


def granted(store: LeaseStore, key: str, owner: str = "a", ttl: timedelta = TTL) -> Lease:
    [answer] = store.acquire([LeaseRequest(key, owner, ttl)])
    assert isinstance(answer, Granted), answer
    return answer.lease


def is_free(store: LeaseStore, key: str) -> bool:
    answers = store.acquire([LeaseRequest(key, "prober", timedelta(seconds=5))])
    store.undo(answers)
    return isinstance(answers[0], Granted)


def until(fact: Callable[[], Any], within: float = 15.0) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.01)


class Told:
    """Remembers the losses it was told of, and when."""

    def __init__(self) -> None:
        self.losses: list[tuple[LeaseLost, float]] = []
        self.event = threading.Event()

    def __call__(self, loss: LeaseLost) -> None:
        self.losses.append((loss, time.monotonic()))
        self.event.set()


def test_guarded_lease_outlives_its_ttl_and_a_forgotten_one_does_not(
    store: LeaseStore, keep_alive: KeepAlive
) -> None:
    lease = granted(store, "k")
    keep_alive.guard(lease)
    time.sleep(2.5)
    lease.ensure_held()
    assert not is_free(store, "k")
    keep_alive.forget(lease)
    until(lambda: is_free(store, "k"), within=5)


def test_all_leases_of_a_process_are_renewed_in_one_call(
    store: LeaseStore, keep_alive: KeepAlive, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[int] = []
    renew = store.renew

    def counting(leases: Any) -> list[bool]:
        batches.append(len(leases))
        return renew(leases)

    monkeypatch.setattr(store, "renew", counting)
    requests = [LeaseRequest(f"k{n}", "a", TTL) for n in range(50)]
    for answer in store.acquire(requests):
        assert isinstance(answer, Granted)
        keep_alive.guard(answer.lease)
    until(lambda: len(batches) >= 3)
    assert batches[:3] == [50, 50, 50]


def test_holder_is_told_when_another_took_the_lease(store: LeaseStore, keep_alive: KeepAlive) -> None:
    lease, told = granted(store, "k"), Told()
    keep_alive.guard(lease, on_lost=told)
    store.force_release("k", who="tester", why="to see")
    assert told.event.wait(3)
    assert (told.losses[0][0].key, told.losses[0][0].fence) == ("k", lease.fence)
    with pytest.raises(LeaseLost):
        lease.ensure_held()
    time.sleep(TTL.total_seconds())
    assert len(told.losses) == 1
    assert is_free(store, "k")


def test_holder_is_told_at_its_deadline_although_the_renewing_thread_hangs(
    store: LeaseStore, keep_alive: KeepAlive, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hang(leases: Any) -> list[bool]:
        time.sleep(5)
        return [False] * len(leases)

    monkeypatch.setattr(store, "renew", hang)
    lease, told = granted(store, "k"), Told()
    deadline = time.monotonic() + lease.remaining.total_seconds()
    keep_alive.guard(lease, on_lost=told)
    assert told.event.wait(3)
    assert told.losses[0][1] - deadline < 0.1


def test_lease_is_acquired_anew_after_an_outage_longer_than_its_ttl(
    server: RedisServer, store: LeaseStore, keep_alive: KeepAlive, caplog: pytest.LogCaptureFixture
) -> None:
    lease, told = granted(store, "k"), Told()
    first = lease.fence
    keep_alive.guard(lease, on_lost=told)
    server.pause()
    assert told.event.wait(5)
    assert not lease.is_held
    server.resume()
    until(lambda: lease.is_held)
    assert lease.fence > first
    assert not is_free(store, "k")
    keep_alive.forget(lease)
    assert store.release([Release(lease, position=1)]) == [True]
    began = [r for r in caplog.messages if "keep_alive_trouble_began" in r]
    ended = [r for r in caplog.messages if "keep_alive_trouble_ended" in r]
    assert (len(began), len(ended)) == (1, 1)


def test_lease_is_not_acquired_anew_once_another_was_granted(
    server: RedisServer, store: LeaseStore, keep_alive: KeepAlive, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, told = granted(store, "k"), Told()

    def away(*_: Any) -> Any:
        raise StoreUnavailable("redis", "away")

    with monkeypatch.context() as outage:
        for call in ("renew", "now", "acquire"):
            outage.setattr(store, call, away)
        keep_alive.guard(lease, on_lost=told)
        assert told.event.wait(5)
        other = open_store(server.url)
        until(lambda: is_free(other, "k"))
        assert other.release([Release(granted(other, "k", "b"))]) == [True]
    time.sleep(1.5)
    assert not lease.is_held
    assert keep_alive.leases == [lease]
    assert is_free(store, "k")


def test_lease_is_not_acquired_anew_from_a_store_that_forgot(
    server: RedisServer, store: LeaseStore, keep_alive: KeepAlive
) -> None:
    lease, told = granted(store, "k"), Told()
    store.now()
    keep_alive.guard(lease, on_lost=told)
    server.kill()
    assert told.event.wait(5)
    server.restart(keep_data=False)
    until(lambda: is_free(store, "k"))
    time.sleep(1)
    assert not lease.is_held


def test_lease_is_not_acquired_anew_from_a_store_that_was_rolled_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lagging replica was promoted: our record is there, but a successor's may be lost."""
    store = MemoryLeaseStore()
    keep_alive = KeepAlive(store)
    lease, told = granted(store, "k"), Told()

    def away(*_: Any) -> Any:
        raise StoreUnavailable("memory", "away")

    with monkeypatch.context() as outage:
        for call in ("renew", "now", "acquire"):
            outage.setattr(store, call, away)
        keep_alive.guard(lease, on_lost=told)
        assert told.event.wait(5)
        store._notice_memory_loss()
    time.sleep(1.5)
    assert not lease.is_held
    assert is_free(store, "k")


def test_lease_is_put_back_into_a_store_that_forgot_before_the_deadline(
    server: RedisServer, store: LeaseStore, keep_alive: KeepAlive
) -> None:
    ttl = timedelta(seconds=6)
    lease, told = granted(store, "k", ttl=ttl), Told()
    fence = lease.fence
    keep_alive.guard(lease, on_lost=told)
    server.kill()
    server.restart(keep_data=False)
    until(lambda: store.peek(["k"]) != [None], within=6)
    time.sleep(1)
    lease.ensure_held()
    assert (lease.fence, told.losses) == (fence, [])


def test_at_most_caps_the_whole_life(store: LeaseStore, keep_alive: KeepAlive) -> None:
    lease, told = granted(store, "k"), Told()
    began = time.monotonic()
    keep_alive.guard(lease, on_lost=told, at_most=timedelta(seconds=2.5))
    assert told.event.wait(5)
    assert 1.9 < told.losses[0][1] - began < 2.7
    until(lambda: is_free(store, "k"), within=1)


def test_renewing_survives_any_error(
    store: LeaseStore, keep_alive: KeepAlive, monkeypatch: pytest.MonkeyPatch
) -> None:
    renew, failures = store.renew, iter([RuntimeError("bug"), ZeroDivisionError()])

    def failing(leases: Any) -> list[bool]:
        for failure in failures:
            raise failure
        return renew(leases)

    monkeypatch.setattr(store, "renew", failing)
    lease = granted(store, "k")
    keep_alive.guard(lease)
    time.sleep(2)
    lease.ensure_held()


def test_receiver_that_fails_does_not_stop_the_others(store: LeaseStore, keep_alive: KeepAlive) -> None:
    def fail(loss: LeaseLost) -> None:
        raise RuntimeError("a receiver's bug")

    told = Told()
    for key, receiver in (("k1", fail), ("k2", told)):
        keep_alive.guard(granted(store, key), on_lost=receiver)
        store.force_release(key, who="tester", why="to see")
    assert told.event.wait(3)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_forked_child_keeps_its_own_leases_and_not_its_parents(server: RedisServer) -> None:
    outcome = run_python(
        """
        import os, sys, time
        from datetime import timedelta
        from celery_singleton_lock import LeaseRequest, open_store
        from celery_singleton_lock.worker.keep_alive import KeepAlive

        store = open_store(sys.argv[1])
        keep_alive = KeepAlive(store)
        ttl = timedelta(seconds=1)
        mine = store.acquire([LeaseRequest("parent", "a", ttl)])[0].lease
        keep_alive.guard(mine)
        time.sleep(0.5)  # the threads are at work
        child = os.fork()
        if child == 0:
            assert keep_alive.leases == []
            own = store.acquire([LeaseRequest("child", "b", ttl)])[0].lease
            keep_alive.guard(own)
            time.sleep(2)
            own.ensure_held()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        mine.ensure_held()
        print("child", os.waitstatus_to_exitcode(status), len(keep_alive.leases))
        """,
        server.url,
    )
    assert outcome == "child 0 1"


def test_stopped_process_is_told_within_100_ms_of_waking(server: RedisServer) -> None:
    program = start_python(
        """
        import sys, time
        from datetime import timedelta
        from celery_singleton_lock import LeaseRequest, open_store
        from celery_singleton_lock.worker.keep_alive import KeepAlive

        store = open_store(sys.argv[1])
        keep_alive = KeepAlive(store)
        lease = store.acquire([LeaseRequest("k", "a", timedelta(seconds=1))])[0].lease
        told = []
        keep_alive.guard(lease, on_lost=lambda loss: told.append(time.monotonic()))
        last = time.monotonic()  # before we say so: we may be stopped at once
        print("holding", flush=True)
        while True:
            time.sleep(0.005)
            now = time.monotonic()
            if now - last > 0.4:
                woke = now
                break
            last = now
        while not told and time.monotonic() < woke + 10:
            time.sleep(0.001)
        print(told[0] - woke, flush=True)
        """,
        server.url,
    )
    with program:
        assert program.stdout is not None
        assert program.stdout.readline() == "holding\n"
        program.send_signal(signal.SIGSTOP)
        other = open_store(server.url)
        # Another one gets in while the first is stopped.
        until(lambda: isinstance(other.acquire([LeaseRequest("k", "b", TTL * 30)])[0], Granted))
        program.send_signal(signal.SIGCONT)
        delay = float(program.stdout.readline())
        assert program.wait(10) == 0
    assert delay < 0.1


def start_python(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments], stdout=subprocess.PIPE, text=True
    )


def run_python(code: str, *arguments: str) -> str:
    program = start_python(code, *arguments)
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 0
    return output.strip()
