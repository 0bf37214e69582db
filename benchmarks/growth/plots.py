"""What is drawn, at which values."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from redis import Redis

from benchmarks import replicas, schedulers, two_replicas
from benchmarks.beside.locks import BARE, subjects_on
from benchmarks.chapters import Pace
from benchmarks.leases import BareLocks, acquire_and_release
from benchmarks.measure import Subject
from benchmarks.redlock import NODES
from benchmarks.schedulers import NAMES, Kind
from benchmarks.worker import scripts_run
from celery_singleton_lock import open_store
from celery_singleton_lock.testing.servers import RedisServer

from .curves import Plot, Sample
from .distance import Distance, away


@dataclass(frozen=True, slots=True)
class Effort:
    entries: Sequence[int]
    replicas: Sequence[int]
    leases: Sequence[int]
    milliseconds: Sequence[int]
    burst: int
    """Entries that replicas share."""
    far_burst: int
    """Entries whose store is far away."""
    idle_s: float
    rounds: int


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort((10, 30), (1, 2), (1, 10), (0, 1), burst=20, far_burst=5, idle_s=1, rounds=1),
    "usual": Effort(
        entries=(100, 1_000, 3_000, 10_000, 100_000),
        replicas=(1, 2, 4, 8),
        leases=(1, 10, 100, 1_000, 10_000),
        milliseconds=(0, 1, 2, 5, 10, 20),
        burst=5_000,
        far_burst=100,
        idle_s=6,
        rounds=2,
    ),
}
LONGEST_S: Final = 30.0
_numbers = itertools.count()


def plots(pace: Pace) -> Iterator[Plot]:
    effort = EFFORTS.get(pace, EFFORTS["usual"])
    yield from of_leases(effort)
    yield from of_distance(effort)
    yield from of_replicas(effort)
    yield from of_entries(effort)


# Entries


def of_entries(effort: Effort) -> Iterator[Plot]:
    for name, title, measure in (
        ("entries-due", "All entries are due at once: until the last is published", schedulers.burst),
        ("entries-start", "The first tick, with nothing due", first_tick_s),
    ):
        yield Plot(
            name,
            title,
            "entries",
            "seconds",
            effort.entries,
            of_each(measure),
            effort.rounds,
            is_long=lambda entries: entries > 100,
            ends_above=LONGEST_S,
        )


def of_each(measure: Callable[[Kind, int], float]) -> dict[str, Sample]:
    return {name: partial(measure, kind) for kind, name in NAMES.items() if schedulers.is_there(kind)}


def first_tick_s(kind: Kind, entries: int) -> float:
    return schedulers.first_tick(kind, entries)["seconds"]


# Replicas


def of_replicas(effort: Effort) -> Iterator[Plot]:
    with RedisServer() as server:
        burst = SharedBurst(server, effort.burst)
        yield Plot(
            "replicas-due",
            f"{effort.burst:,} entries are due at once: until the last is published",
            "replicas",
            "seconds",
            effort.replicas,
            {"ours": burst.seconds},
            effort.rounds,
        )
        yield Plot(
            "replicas-calls",
            f"{effort.burst:,} entries are due at once: calls to the store, of all replicas",
            "replicas",
            "calls",
            effort.replicas,
            {"ours": burst.calls_of},
        )
    yield Plot(
        "replicas-idle",
        f"{replicas.IDLE_ENTRIES:,} entries, none due: commands to the store, of all replicas",
        "replicas",
        "commands a second",
        effort.replicas,
        {"ours": lambda count: idle_commands(count, effort.idle_s)},
    )


class SharedBurst:
    def __init__(self, server: RedisServer, entries: int) -> None:
        self._server, self._entries = server, entries
        self._calls: dict[int, int] = {}
        self._calls_before = 0

    def seconds(self, count: int) -> float:
        prefix = f"shared{next(_numbers)}"
        took = two_replicas.burst(self._server.url, prefix, count, self._entries, self._note_calls)
        self._calls[count] = scripts_run(self._server) - self._calls_before
        return took

    def calls_of(self, count: int) -> float:
        """In the last burst of so many. The store is told of in scripts, and the broker is not."""
        return self._calls[count]

    def _note_calls(self) -> None:
        self._calls_before = scripts_run(self._server)


def idle_commands(count: int, seconds: float) -> float:
    with (
        RedisServer() as locks,
        RedisServer() as broker,
        replicas.beats(replicas.IDLE_CONFIG, broker, locks, count),
    ):
        replicas.until_all_are_known(locks, replicas.IDLE_ENTRIES)
        time.sleep(2 + count)  # the last of them has read its positions, too
        return replicas.commands_of(locks, seconds) / seconds


# Leases in a call


def of_leases(effort: Effort) -> Iterator[Plot]:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(NODES)]
        urls = [server.url for server in servers]
        single = stack.enter_context(closing(open_store(urls[0], prefix="single")))
        quorum = stack.enter_context(closing(open_store(urls)))
        bare = BareLocks(stack.enter_context(Redis.from_url(urls[0])))
        yield Plot(
            "leases",
            "Leases in one call: acquire + release of one of them",
            "leases in a call",
            "µs a lease",
            effort.leases,
            {
                "ours": each_of(lambda keys: acquire_and_release(single, keys)),
                f"ours, over {NODES} nodes": each_of(lambda keys: acquire_and_release(quorum, keys)),
                "bare redis-py, in a pipeline": each_of(bare.lock_and_unlock_all),
            },
            rounds=5 * effort.rounds,
        )


def each_of(call: Callable[[Sequence[str]], object]) -> Sample:
    """Microseconds for one of so many keys."""

    def cost(count: int) -> float:
        keys = [f"key:{number}" for number in range(count)]
        return 1e6 * Subject(lambda: call(keys), max(1, 100 // count), count).cost()

    return cost


# Distance


def of_distance(effort: Effort) -> Iterator[Plot]:
    with ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(NODES)]
        distance = stack.enter_context(away(servers))
        one = subjects_on(stack, distance.urls[:1], calls=3)
        five = subjects_on(stack, distance.urls, calls=3)
        subjects = {
            BARE: one[BARE],
            "ours": one["ours"],
            "redis-py's Lock": one["redis-py's Lock"],
            **{f"{name}, over {NODES} nodes": five[name] for name in five if name != BARE},
        }
        yield Plot(
            "distance-lease",
            "A store that is farther away: acquire + release of one lease",
            "milliseconds to the store and back",
            "milliseconds",
            effort.milliseconds,
            {name: far(distance, sample, 1_000) for name, sample in subjects.items()},
            rounds=2 * effort.rounds,
        )
        kinds: tuple[Kind, ...] = ("ours", "redbeat")
        yield Plot(
            "distance-due",
            f"A store that is farther away: {effort.far_burst} entries are due at once",
            "milliseconds to the store and back",
            "seconds",
            effort.milliseconds,
            {
                NAMES[kind]: far(distance, far_burst(kind, effort, distance.urls[0]))
                for kind in kinds
                if schedulers.is_there(kind)
            },
        )


def far_burst(kind: Kind, effort: Effort, store_url: str) -> Callable[[], float]:
    return lambda: schedulers.burst(kind, effort.far_burst, store_url=store_url)


def far(distance: Distance, sample: Callable[[], float], unit: float = 1) -> Sample:
    def cost(milliseconds: int) -> float:
        distance.set(milliseconds)
        return unit * sample()

    return cost
