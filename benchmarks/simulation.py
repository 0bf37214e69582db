"""Many replicas in virtual time: no server, no sleep. How often do they ask for a lease in vain?

The real engine runs on the store in memory. What is simulated is time: a call to the store and the
publishing of a message take some, for the replica that makes them; the others go on meanwhile.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from celery_singleton_lock.beat.engine import Engine
from celery_singleton_lock.beat.entries import Due, PlannedEntry
from celery_singleton_lock.beat.plan import CatchUpRule
from celery_singleton_lock.beat.slots import IntervalGrid
from celery_singleton_lock.leases.memory import MemoryLeaseStore

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
EVERY = timedelta(minutes=1)
RULE = CatchUpRule("latest", timedelta(days=1), timedelta(seconds=15))
ROUND_TRIP_S = 0.001
MESSAGES_A_SECOND = 10_000
OVERSLEPT_S = 0.005
"""On average: nobody wakes when he wanted to."""


@dataclass(frozen=True, slots=True)
class Outcome:
    slots: int
    published: int
    """Different ones of these slots."""
    copies: int
    claims: int
    """Requests for a lease."""

    @property
    def claims_a_slot(self) -> float:
        return self.claims / self.slots


def simulate(*, replicas: int, entries: int, slots_each: int, killed: int = 0) -> Outcome:
    """All entries are due at the same instants. In the middle, so many replicas die without a word."""
    world = World()
    engines = [world.start_replica(f"replica {number}", entries) for number in range(replicas)]
    world.run_until(30)
    world.store.claims = 0
    for engine in engines[:killed]:
        world.run_until(60 * (slots_each // 2) + 30)
        world.kill(engine)
    world.run_until(60 * slots_each + 30)
    return Outcome(
        slots=entries * slots_each,
        published=len(world.published),
        copies=sum(world.published.values()) - len(world.published),
        claims=world.store.claims,
    )


class World:
    """One store, one broker, and replicas that wake when they want to, the earliest first."""

    def __init__(self) -> None:
        self.store = CountingStore(self)
        self.published: Counter[Due] = Counter()
        self.spent = 0.0
        """By the replica that is awake, since it woke."""
        self._woke_at = 0.0
        self._wakes: list[tuple[float, int, Engine]] = []
        self._order = itertools.count()
        self._chance = random.Random(1)

    def clock(self) -> float:
        return self._woke_at + self.spent

    def wall_clock(self) -> int:
        return int((START.timestamp() + self.clock()) * 1_000_000)

    def start_replica(self, name: str, entries: int) -> Engine:
        engine = Engine(
            self.store,
            self,
            replica=name,
            slot_ttl=timedelta(seconds=3),
            lock_ttl=timedelta(seconds=30),
            on_missed=_fail,
            clock=self.clock,
        )
        grid = IntervalGrid(EVERY)
        names = (f"entry {number}" for number in range(entries))
        engine.follow([PlannedEntry(name, f"beat:{name}", grid, RULE) for name in names])
        self._wake(engine, at=0.0)
        return engine

    def kill(self, engine: Engine) -> None:
        self._wakes = [wake for wake in self._wakes if wake[2] is not engine]
        heapq.heapify(self._wakes)

    def run_until(self, seconds: float) -> None:
        while self._wakes[0][0] <= seconds:
            self._woke_at, _, engine = heapq.heappop(self._wakes)
            self.spent = 0.0
            wait = engine.tick() + self._chance.expovariate(1 / OVERSLEPT_S)
            self._wake(engine, at=self.clock() + wait)

    def _wake(self, engine: Engine, *, at: float) -> None:
        heapq.heappush(self._wakes, (at, next(self._order), engine))

    # The broker, which is always there

    def prepare(self) -> None:
        pass

    def publish(self, dues: Sequence[Due]) -> None:
        self.spent += len(dues) / MESSAGES_A_SECOND
        self.published.update(dues)

    def publish_anew(self, dues: Sequence[Due]) -> None:
        raise AssertionError("nobody was asked to look whether runs were started")

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        if messages:
            raise AssertionError("no run was in progress")


class CountingStore(MemoryLeaseStore):
    def __init__(self, world: World) -> None:
        super().__init__(clock=world.clock, wall_clock=world.wall_clock)
        self.claims = 0
        self._world = world

    def _acquire(self, requests, call):  # type: ignore[no-untyped-def]
        self.claims += len(requests)
        self._world.spent += ROUND_TRIP_S
        return super()._acquire(requests, call)

    def _release(self, releases):  # type: ignore[no-untyped-def]
        self._world.spent += ROUND_TRIP_S
        return super()._release(releases)

    def _peek(self, keys):  # type: ignore[no-untyped-def]
        self._world.spent += ROUND_TRIP_S
        return super()._peek(keys)


def _fail(due: Due) -> None:
    raise AssertionError(f"{due} was missed")
