"""Replicas of beat in virtual time: no server, no sleep, and every fault on purpose."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from celery import Celery

from celery_singleton_lock.beat.engine import Engine
from celery_singleton_lock.beat.entries import BrokerUnavailable, Due, NotTaken, PlannedEntry
from celery_singleton_lock.beat.entry import SingletonEntry, plan_entry
from celery_singleton_lock.beat.plan import CatchUpRule, entry_key
from celery_singleton_lock.beat.roster import Roster
from celery_singleton_lock.beat.schedule import Schedule
from celery_singleton_lock.beat.slots import Grid
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.leases.memory import MemoryLeaseStore
from celery_singleton_lock.settings import Settings

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SETTINGS = Settings.from_mapping({"singleton_lock_url": "memory://"})


def new_app(beat_schedule: Mapping[str, Any]) -> Celery:
    app = Celery("app", set_as_current=False)
    lines = {name: {"task": "tasks.t", **fields} for name, fields in beat_schedule.items()}
    app.conf.beat_schedule = lines
    return app


class World:
    """One store, one broker, and any number of replicas, on one virtual clock."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.store = CountingStore(clock=self.clock, wall_clock=self.wall_clock)
        self.published: list[Due] = []
        self.published_anew: list[Due] = []
        self.published_again: list[Mapping[str, Any]] = []
        self.missed: list[Due] = []
        self.broker_is_away = False
        self.full_queues: set[str] = set()
        self.refused: set[str] = set()
        """Entries that can never be published."""
        self.seconds_to_connect = 0.0
        self.before_publish: Callable[[], None] = lambda: None
        self.at_work: Engine | None = None
        self._wakes: list[tuple[float, int, Engine]] = []
        self._names = 0
        self.looks_after_starts: Mapping[str, Any] = {}
        """What replicas that come are told of runs that nobody starts."""

    def clock(self) -> float:
        return self.seconds

    def wall_clock(self) -> int:
        return int((START.timestamp() + self.seconds - 1000) * 1_000_000)

    def prepare(self) -> None:
        if self.broker_is_away:
            raise BrokerUnavailable("away")
        wait, self.seconds_to_connect = self.seconds_to_connect, 0.0
        if wait:
            self.run(wait)  # the others go on

    def publish(self, dues: Sequence[Due]) -> None:
        self._publish(dues, self.published)

    def publish_anew(self, dues: Sequence[Due]) -> None:
        self._publish(dues, self.published_anew)

    def _publish(self, dues: Sequence[Due], published: list[Due]) -> None:
        self.prepare()
        self.before_publish()
        full = [due for due in dues if due.entry in self.full_queues]
        published.extend(self._taken([due for due in dues if due not in full]))
        self.seconds += len(dues) / 5000
        if full:
            raise NotTaken(full)

    def _taken(self, dues: Sequence[Due]) -> list[Due]:
        for due in dues:
            if due.entry in self.refused and self.at_work is not None:
                self.at_work.refuse(due)
        return [due for due in dues if due.entry not in self.refused]

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self.prepare()
        self.published_again.extend(messages)

    def add_replica(
        self,
        entries: Mapping[str, Grid],
        rule: CatchUpRule | None = None,
        **options: Any,
    ) -> Engine:
        engine = self._new_engine()
        rule = rule or CatchUpRule("latest", timedelta(days=1), 15 * SECOND)
        engine.follow(
            [
                PlannedEntry(name, entry_key("app", name), grid, rule, **options)
                for name, grid in entries.items()
            ]
        )
        return engine

    def add_beat(self, **beat_schedule: Any) -> Engine:
        """A replica that reads the book, with a configuration of its own."""
        app = new_app(beat_schedule)
        entries = {
            name: SingletonEntry(name=name, app=app, task="tasks.t", **fields)
            for name, fields in beat_schedule.items()
        }
        engine = self._new_engine(roster=Roster(app, SETTINGS, entries))
        engine.follow([plan_entry(entry, SETTINGS, "app") for entry in entries.values()])
        return engine

    def schedule(self, **beat_schedule: Any) -> Schedule:
        """What an operator has in hand."""
        return Schedule(new_app(beat_schedule), SETTINGS, self.store, by="tester")

    def _new_engine(self, **options: Any) -> Engine:
        self._names += 1
        engine = Engine(
            self.store,
            self,
            replica=f"replica {self._names}",
            slot_ttl=3 * SECOND,
            lock_ttl=30 * SECOND,
            on_missed=self.missed.append,
            app_name="app",
            clock=self.clock,
            **self.looks_after_starts,
            **options,
        )
        heapq.heappush(self._wakes, (self.seconds, self._names, engine))
        return engine

    def kill(self, engine: Engine) -> None:
        self._wakes = [wake for wake in self._wakes if wake[2] is not engine]
        heapq.heapify(self._wakes)

    def wake(self, engine: Engine) -> None:
        self._names += 1
        heapq.heappush(self._wakes, (self.seconds, self._names, engine))

    def run(self, seconds: float) -> None:
        until = self.seconds + seconds
        while self._wakes and self._wakes[0][0] <= until:
            at, name, engine = heapq.heappop(self._wakes)
            self.seconds = max(self.seconds, at)
            self.at_work = engine
            wait = engine.tick()
            heapq.heappush(self._wakes, (self.seconds + max(wait, 0.001), name, engine))
        self.seconds = until

    def slots_of(self, entry: str) -> list[float]:
        """Seconds since the start, in the order of their publishing."""
        return [(due.slot - START).total_seconds() for due in self.published if due.entry == entry]


class CountingStore(MemoryLeaseStore):
    is_away = False
    fail_dismissals = False
    claims = 0
    calls = 0

    def _acquire(self, requests, call):  # type: ignore[no-untyped-def]
        self._answer()
        self.claims += len(requests)
        return super()._acquire(requests, call)

    def _meet(self, group, member, ttl):  # type: ignore[no-untyped-def]
        self._answer()
        return super()._meet(group, member, ttl)

    def _peek(self, keys):  # type: ignore[no-untyped-def]
        self._answer()
        return super()._peek(keys)

    def _release(self, releases):  # type: ignore[no-untyped-def]
        self._answer()
        return super()._release(releases)

    def _expired(self, at_most):  # type: ignore[no-untyped-def]
        self._answer()
        return super()._expired(at_most)

    def _dismiss(self, grants):  # type: ignore[no-untyped-def]
        self._answer()
        if self.fail_dismissals:
            raise StoreUnavailable("memory", "away")
        return super()._dismiss(grants)

    def _answer(self) -> None:
        self.calls += 1
        if self.is_away:
            raise StoreUnavailable("memory", "away")
