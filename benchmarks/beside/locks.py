"""Locks by themselves: one node and five, taken and given back, nobody else wants them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from benchmarks.chapters import Chapter, NotMeasured, Pace
from benchmarks.environment import version_of
from benchmarks.leases import TTL, BareLocks, acquire_and_release, lock_by_redis_py
from benchmarks.measure import Answer, Subject
from benchmarks.redlock import NODES
from celery_singleton_lock import open_store
from celery_singleton_lock.testing.servers import RedisServer

from .turns import Sample, absent, in_turns

BARE: Final = "bare SET NX and EVALSHA"
OTHERS: Final = ("redlock-py", "pottery")


@dataclass(frozen=True, slots=True)
class Effort:
    rounds: int
    calls: int


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(rounds=2, calls=2),
    "usual": Effort(rounds=30, calls=10),
    "full": Effort(rounds=150, calls=10),
}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield f"locks: acquire + release on one node, to {BARE}", measured(effort, 1)
    yield (
        f"locks: acquire + release over {NODES} nodes, to {BARE} on one of them",
        measured(effort, NODES),
    )


def measured(effort: Effort, nodes: int) -> Iterator[Answer | NotMeasured]:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(nodes)]
        subjects = subjects_on(stack, [server.url for server in servers], effort.calls)
        yield from in_turns(subjects, effort.rounds, against=BARE, warm_up=True)
    if nodes > 1:
        yield NotMeasured("redis-py's Lock", "it is on one node only")
    yield from absent(OTHERS)


def subjects_on(stack: ExitStack, urls: Sequence[str], calls: int) -> dict[str, Sample]:
    """On one node, or over several."""
    clients = [stack.enter_context(Redis.from_url(url)) for url in urls]
    store = stack.enter_context(closing(open_store(urls[0] if len(urls) == 1 else list(urls))))
    bare = BareLocks(clients[0])
    subjects = {
        BARE: lambda: bare.lock_and_unlock("bare"),
        "ours": lambda: acquire_and_release(store, ["job"]),
    }
    if len(urls) == 1:
        subjects["redis-py's Lock"] = lambda: lock_by_redis_py(clients[0], "redis-py")
    if version_of("redlock-py"):
        subjects["redlock-py"] = RedlockPy(clients)
    if version_of("pottery"):
        subjects["pottery"] = Pottery(clients)
    return {name: Subject(call, calls).cost for name, call in subjects.items()}


class RedlockPy:
    def __init__(self, clients: Sequence[Any]) -> None:
        from redlock import Redlock

        self._locks = Redlock(clients)

    def __call__(self) -> None:
        lock = self._locks.lock("redlock-py", int(TTL.total_seconds() * 1_000))
        if not lock:
            raise RuntimeError("it was refused a lock that nobody has")
        self._locks.unlock(lock)


class Pottery:
    """A lock of its is an object for one key, which its users keep or make anew: kept, here."""

    def __init__(self, clients: Sequence[Any]) -> None:
        from pottery import Redlock

        self._lock = Redlock(key="pottery", masters=set(clients), auto_release_time=TTL.total_seconds())

    def __call__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise RuntimeError("it was refused a lock that nobody has")
        self._lock.release()
