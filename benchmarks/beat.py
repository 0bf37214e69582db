"""What beat costs: bursts against a bare loop of `send_task`, large schedules, and doing nothing."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from celery import Celery
from celery.beat import ScheduleEntry
from celery.schedules import crontab

from celery_singleton_lock import open_store
from celery_singleton_lock.beat.engine import Engine
from celery_singleton_lock.beat.entries import BrokerUnavailable, Due, PlannedEntry
from celery_singleton_lock.beat.plan import CatchUpRule
from celery_singleton_lock.beat.publisher import Publisher
from celery_singleton_lock.beat.slots import Grid, grid_of
from celery_singleton_lock.testing.servers import RedisServer

from . import first_tick, promises, replicas, two_replicas
from .chapters import Chapter, Pace
from .measure import Answer, Contest, Subject, against_bound, answer, promised
from .round_trips import RoundTrips, counted_round_trips
from .simulation import simulate

ENTRIES = 10_000
TASK = "bench.noop"
EVERY = timedelta(days=1)
"""Long enough that no second slot becomes due while the first one waits to be measured."""
RULE = CatchUpRule("all", 2 * EVERY, 2 * EVERY)
SIMULATED_REPLICAS = 50
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of everything: rounds, seconds, and entries."""

    burst_rounds: int
    shared_rounds: int
    shared_entries: int
    static_rounds: int
    static_entries: int
    simulated_entries: int
    idle_s: float
    lag_s: float


FULL: Final = Effort(
    burst_rounds=4,
    shared_rounds=2,
    shared_entries=ENTRIES,
    static_rounds=2,
    static_entries=100_000,
    simulated_entries=10_000,
    idle_s=20,
    lag_s=60,
)
USUAL: Final = replace(
    FULL, burst_rounds=3, static_rounds=1, simulated_entries=2_000, idle_s=8, lag_s=20
)
QUICK: Final = Effort(
    burst_rounds=1,
    shared_rounds=1,
    shared_entries=1_000,
    static_rounds=1,
    static_entries=2_000,
    simulated_entries=100,
    idle_s=2,
    lag_s=3,
)


EFFORTS: Final[Mapping[Pace, Effort]] = {"quick": QUICK, "usual": USUAL, "full": FULL}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield (
        f"beat: {ENTRIES:,} crontab entries due at one instant; times are of one entry",
        bursts(effort.burst_rounds),
    )
    yield (
        f"beat: {effort.shared_entries:,} entries due at one instant, replicas as processes",
        two_replicas.shared_bursts(effort.shared_entries, effort.shared_rounds),
    )
    yield (
        f"beat: starting with {effort.static_entries:,} crontab entries",
        first_tick.first_ticks(effort.static_entries, effort.static_rounds),
    )
    yield (
        f"beat: {replicas.REPLICAS} replicas, {replicas.IDLE_ENTRIES:,} entries, nothing due",
        replicas.idle(effort.idle_s),
    )
    yield (
        f"beat: {replicas.BUSY_ENTRIES:,} entries, each due about once a minute",
        replicas.dispatch_lag(effort.lag_s),
    )
    yield (
        f"beat in virtual time: {SIMULATED_REPLICAS} replicas, {effort.simulated_entries:,} entries",
        simulated(effort.simulated_entries),
    )


def bursts(rounds: int) -> Iterator[Answer]:
    logging.getLogger("celery_singleton_lock").setLevel(logging.ERROR)
    with RedisServer() as server:
        app = Celery("bench", broker=server.url, set_as_current=False)
        # One call more than rounds: the first is not counted.
        beat, loop = Beat(app, server, rounds + 1), Loop(app)
        contest = Contest(
            {
                "beat": Subject(beat.publish_all_due, items_per_call=ENTRIES),
                "loop": Subject(loop.send_all, items_per_call=ENTRIES),
            },
            [promised(promises.BURST, "beat", "loop")],
            rounds,
        )
        yield from contest.decide(repeats=0)
        yield round_trips(app, server)


def round_trips(app: Celery, server: RedisServer) -> Answer:
    """Those to the store: publishing is left out. Two a chunk, and a heartbeat now and then."""
    beat = Beat(app, server, 1)
    with counted_round_trips() as trips:
        beat.publish_all_due(trips)
    question = promised(promises.BURST_ROUND_TRIPS, "trips", "entries")
    return answer(question, {"trips": [trips.count], "entries": [ENTRIES]}, "round trips")


def simulated(entries: int) -> Iterator[Answer]:
    outcome = simulate(replicas=SIMULATED_REPLICAS, entries=entries, slots_each=1)
    if outcome.published != outcome.slots or outcome.copies:
        raise AssertionError(f"lost or repeated: {outcome}")
    yield against_bound(promises.CLAIMS, [outcome.claims_a_slot])


class Beat:
    """Replicas that know their entries, all of which are due: one for every call."""

    def __init__(self, app: Celery, server: RedisServer, calls: int) -> None:
        every_midnight = crontab(hour=0, minute=0, app=app)
        self._entries = {
            f"entry {number}": ScheduleEntry(
                f"entry {number}", TASK, schedule=every_midnight, args=(number,), app=app
            )
            for number in range(ENTRIES)
        }
        self._publisher = LateBroker(Publisher(app, self._entries.__getitem__, on_refused=_fail))
        grid = grid_of(every_midnight)
        prefixes = [f"bench{next(_numbers)}" for _ in range(calls)]
        self._ready = [self._replica(server, grid, prefix) for prefix in prefixes]
        self._publisher.is_away = False
        # What was put off while the broker was away is put off for a second at most.
        time.sleep(1.1)

    def _replica(self, server: RedisServer, grid: Grid, prefix: str) -> Engine:
        store = open_store(server.url, prefix=prefix)
        engine = Engine(
            store,
            self._publisher,
            replica="bench",
            slot_ttl=timedelta(seconds=3),
            lock_ttl=timedelta(seconds=30),
            on_missed=_fail,
        )
        behind = store.now() - EVERY
        engine.follow(
            [PlannedEntry(name, f"beat:{name}", grid, RULE, position=behind) for name in self._entries]
        )
        engine.tick()
        return engine

    def publish_all_due(self, trips: RoundTrips | None = None) -> None:
        """From the look at what is due to the recorded positions."""
        self._publisher.not_counted_in = trips
        self._publisher.count = 0
        self._ready.pop().tick()
        if self._publisher.count != ENTRIES:
            raise AssertionError(f"{self._publisher.count:,} messages are no burst of {ENTRIES:,}")


class LateBroker:
    """Lets replicas read their positions before it lets them publish."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.is_away = True
        self.count = 0
        self.not_counted_in: RoundTrips | None = None

    def prepare(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("not yet")
        self._publisher.prepare()

    def publish(self, dues: Sequence[Due]) -> None:
        before = self.not_counted_in.count if self.not_counted_in else 0
        self._publisher.publish(dues)
        self.count += len(dues)
        if self.not_counted_in:
            self.not_counted_in.count = before

    def publish_anew(self, dues: Sequence[Due]) -> None:
        self._publisher.publish_anew(dues)

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._publisher.publish_again(messages)


class Loop:
    """What everybody would write: one producer, one call after the other."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def send_all(self) -> None:
        with self._app.producer_or_acquire() as producer:
            for number in range(ENTRIES):
                self._app.send_task(TASK, (number,), producer=producer)


def _fail(due: object) -> None:
    raise AssertionError(f"{due} was not published")
