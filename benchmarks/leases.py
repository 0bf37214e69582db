"""What a lease costs: on Valkey against bare redis-py, in batches, and on the other stores."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from redis import Redis

from celery_singleton_lock import (
    ConfigurationError,
    Granted,
    Lease,
    LeaseRequest,
    LeaseStore,
    Release,
    open_store,
)
from celery_singleton_lock.testing.servers import (
    PostgresServer,
    RedisServer,
    ServerMissing,
    TcpProxy,
)

from . import promises
from .chapters import Chapter, NotMeasured, Pace
from .measure import Answer, Contest, Question, Subject, answer, promised
from .promises import Promise
from .round_trips import counted_round_trips

Client = Any  # redis-py is mostly untyped.

TTL = timedelta(seconds=30)
OWNER = "benchmark:4242:0123456789abcdef0123456789abcdef"
BATCH = 1_000
KEYS = [f"batch:{number}" for number in range(BATCH)]
DISTANCE_S = 0.001
"""How far away the server of the batches is: about as far as the next availability zone."""

# What everybody writes: the value is compared, so that nobody's lock but our own is deleted.
COMPARE_AND_DELETE = """
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0
"""


@dataclass(frozen=True, slots=True)
class Effort:
    """How many rounds a contest has: of calls that take microseconds, and of batches."""

    rounds: int
    batch_rounds: int


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(rounds=30, batch_rounds=3),
    "usual": Effort(rounds=100, batch_rounds=10),
    "full": Effort(rounds=300, batch_rounds=30),
}


def chapters(server: RedisServer, pace: Pace) -> Iterator[Chapter]:
    """Every contest under its title, each measured when it is asked for."""
    effort = EFFORTS[pace]
    yield "acquire + release of one lease", one_lease(server, effort)
    yield f"{BATCH:,} leases in one call; times are of one lease", batches(server, effort)
    yield f"renewing {BATCH:,} live leases", renewals(server, effort)
    yield "acquire + release of one lease on the other stores", other_stores(server, effort)


# One lease


def one_lease(server: RedisServer, effort: Effort) -> Iterator[Answer]:
    with closing(open_store(server.url)) as store, Redis.from_url(server.url) as client:
        bare, number = BareLocks(client), itertools.count()
        subjects = {
            "ours": Subject(lambda: acquire_and_release(store, ["job"]), calls=20),
            "bare": Subject(lambda: bare.lock_and_unlock("bare"), calls=20),
            "redis-py": Subject(lambda: lock_by_redis_py(client, "redis-py"), calls=20),
        }
        questions = [
            promised(promises.LEASE, "ours", "bare"),
            Question("ours, to redis-py's Lock", "ours", "redis-py"),
            Question("redis-py's Lock, to bare SET NX and EVALSHA", "redis-py", "bare"),
        ]
        yield from Contest(subjects, questions, effort.rounds).decide()
        # As for the runs of a task: each has a key of its own, whose record is kept.
        subjects = {
            "ours": Subject(lambda: acquire_and_release(store, [f"run:{next(number)}"]), calls=20),
            "bare": Subject(lambda: bare.lock_and_unlock(f"bare:{next(number)}"), calls=20),
        }
        question = Question("the first, with a new key each time", "ours", "bare")
        yield from Contest(subjects, [question], effort.rounds // 3).decide()


def acquire_and_release(store: LeaseStore, keys: Sequence[str]) -> None:
    store.release([Release(lease) for lease in acquire(store, keys)])


def acquire(store: LeaseStore, keys: Sequence[str]) -> list[Lease]:
    """The leases under `keys`, which are nobody's: a benchmark that is refused measures nothing."""
    answers = store.acquire([LeaseRequest(key, OWNER, TTL) for key in keys])
    leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
    if len(leases) != len(keys):
        raise RuntimeError(f"{len(keys) - len(leases)} of {len(keys)} leases were refused")
    return leases


class BareLocks:
    """The floor: what can be done with redis-py and as few commands as a lock needs."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._digest = client.script_load(COMPARE_AND_DELETE)
        self._ttl_ms = TTL // timedelta(milliseconds=1)

    def lock_and_unlock(self, key: str) -> None:
        self._client.set(key, OWNER, nx=True, px=self._ttl_ms)
        self._client.evalsha(self._digest, 1, key, OWNER)

    def lock_and_unlock_all(self, keys: Sequence[str]) -> None:
        """Each in one pipeline, which is no transaction."""
        with self._client.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.set(key, OWNER, nx=True, px=self._ttl_ms)
            pipeline.execute()
            for key in keys:
                pipeline.evalsha(self._digest, 1, key, OWNER)
            pipeline.execute()


def lock_by_redis_py(client: Client, key: str) -> None:
    lock = client.lock(key, timeout=TTL.total_seconds())
    lock.acquire(blocking=False)
    lock.release()


# Many leases


def batches(server: RedisServer, effort: Effort) -> Iterator[Answer | NotMeasured]:
    """One call for all of them, to one by one."""
    with TcpProxy(server.port) as proxy:
        proxy.delay(DISTANCE_S)
        with closing(open_store(f"redis://127.0.0.1:{proxy.port}/0")) as store:
            subjects = batch_subjects(store, 10)
            questions = promised_of_batches(promises.BATCH_AFAR, promises.BATCH_AFAR_BOTH)
            yield from Contest(subjects, questions, effort.batch_rounds).decide()
    with RedisServer() as apart, closing(open_store(apart.url)) as store:
        if move_to_another_core(apart):
            contest = Contest(
                batch_subjects(store, 100),
                promised_of_batches(promises.BATCH_NEAR, promises.BATCH_NEAR_BOTH),
                effort.batch_rounds,
            )
            yield from contest.decide()
        else:
            yield NotMeasured(promises.BATCH_NEAR.name, "there is one core, or no way to choose it")
    with closing(open_store(server.url)) as store, Redis.from_url(server.url) as client:
        bare = BareLocks(client)
        subjects = batch_subjects(store, 100) | {
            "bare all": Subject(lambda: bare.lock_and_unlock_all(KEYS), items_per_call=BATCH),
            "bare each": Subject(lambda: bare.lock_and_unlock("bare"), calls=100),
        }
        questions = [
            # No promise: client and server take turns here, so nobody ever waits for a round trip.
            Question("same host, one core for both: acquire", "all", "each"),
            Question("same host, one core for both: with release", "both of all", "both of each"),
            Question("bare redis-py there: pipeline, to one by one", "bare all", "bare each"),
        ]
        yield from Contest(subjects, questions, effort.batch_rounds).decide()


def promised_of_batches(acquire_alone: Promise, with_release: Promise) -> list[Question]:
    return [
        promised(acquire_alone, "all", "each"),
        promised(with_release, "both of all", "both of each"),
    ]


def move_to_another_core(server: RedisServer) -> bool:
    """As it is where people run it: a server does not share its core with its clients."""
    if not hasattr(os, "sched_setaffinity"):
        return False
    others = set(range(os.cpu_count() or 1)) - os.sched_getaffinity(0)
    if others:
        os.sched_setaffinity(server.pid, others)
    return bool(others)


def batch_subjects(store: LeaseStore, calls: int) -> dict[str, Subject]:
    """All in one call, and one by one: acquire alone, and acquire and release."""
    mine = Acquisitions(store)
    return {
        "all": Subject(mine.acquire_all, items_per_call=BATCH, tidy_up=mine.give_back),
        "each": Subject(mine.acquire_another, calls, tidy_up=mine.give_back),
        "both of all": Subject(lambda: acquire_and_release(store, KEYS), items_per_call=BATCH),
        "both of each": Subject(lambda: acquire_and_release(store, KEYS[:1]), calls),
    }


class Acquisitions:
    """Acquires only, and gives back when no clock is running."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._leases: list[Lease] = []

    def acquire_all(self) -> None:
        self._leases += acquire(self._store, KEYS)

    def acquire_another(self) -> None:
        self._leases += acquire(self._store, [KEYS[len(self._leases)]])

    def give_back(self) -> None:
        self._store.release([Release(lease) for lease in self._leases])
        self._leases.clear()


def renewals(server: RedisServer, effort: Effort) -> Iterator[Answer]:
    with closing(open_store(server.url)) as store:
        leases = acquire(store, KEYS)
        subjects = {
            "all": Subject(lambda: store.renew(leases)),
            "one": Subject(lambda: store.renew(leases[:1]), calls=100),
        }
        yield round_trips(store, leases)
        question = Question(f"time of {BATCH:,} in one call, to that of one", "all", "one")
        yield from Contest(subjects, [question], effort.batch_rounds).decide()
        store.release([Release(lease) for lease in leases])


def round_trips(store: LeaseStore, leases: Sequence[Lease]) -> Answer:
    # A server that does not know the script yet is told it, which is a round trip of its own.
    store.renew(leases[:1])
    with counted_round_trips() as together:
        store.renew(leases)
    with counted_round_trips() as apart:
        for lease in leases:
            store.renew([lease])
    question = promised(promises.RENEWAL, "all", "each")
    return answer(question, {"all": [together.count], "each": [apart.count]}, "round trips")


# Other stores


def other_stores(server: RedisServer, effort: Effort) -> Iterator[Answer | NotMeasured]:
    with closing(open_store(server.url)) as valkey, closing(open_store("memory://")) as memory:
        yield from against_valkey("memory", memory, valkey, effort.rounds // 3, calls=20)
        with (
            tempfile.TemporaryDirectory() as directory,
            closing(open_store(f"sqlite:///{Path(directory) / 'leases.db'}")) as sqlite,
        ):
            yield from against_valkey("SQLite", sqlite, valkey, effort.batch_rounds)
        try:
            with PostgresServer() as postgres, closing(open_store(postgres.url)) as store:
                yield from against_valkey("PostgreSQL", store, valkey, effort.batch_rounds)
        except (ServerMissing, ConfigurationError) as missing:
            yield NotMeasured("PostgreSQL", str(missing))


def against_valkey(
    name: str, store: LeaseStore, valkey: LeaseStore, rounds: int, calls: int = 5
) -> list[Answer]:
    subjects = {
        name: Subject(lambda: acquire_and_release(store, ["job"]), calls),
        "Valkey": Subject(lambda: acquire_and_release(valkey, ["job"]), calls=20),
    }
    return Contest(subjects, [Question(f"{name}, to Valkey", name, "Valkey")], rounds).decide()
