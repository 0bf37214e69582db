"""What a burst costs beat: entries that are due at one instant, against a bare loop of `send_task`."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

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

from .measure import Answer, Contest, Question, Subject

ENTRIES = 10_000
TASK = "bench.noop"
RULE = CatchUpRule("all", timedelta(minutes=10), timedelta(minutes=10))


def chapters(rounds: int) -> Iterator[tuple[str, Iterator[Answer]]]:
    yield (
        f"beat: {ENTRIES:,} crontab entries due at one instant; times are of one entry",
        bursts(rounds),
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
            [Question("published, leases included, to send_task", "beat", "loop", at_most=0.5)],
            rounds,
        )
        yield from contest.decide(repeats=0)


class Beat:
    """Replicas that know their entries, all of which are due: one for every call."""

    def __init__(self, app: Celery, server: RedisServer, calls: int) -> None:
        every_minute = crontab(app=app)
        self._entries = {
            f"entry {number}": ScheduleEntry(
                f"entry {number}", TASK, schedule=every_minute, args=(number,), app=app
            )
            for number in range(ENTRIES)
        }
        self._publisher = LateBroker(Publisher(app, self._entries.__getitem__, on_refused=_fail))
        grid = grid_of(every_minute)
        self._ready = [self._replica(server, grid, f"bench{call}") for call in range(calls)]
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
        behind = store.now() - timedelta(minutes=1)
        engine.follow(
            [PlannedEntry(name, f"beat:{name}", grid, RULE, position=behind) for name in self._entries]
        )
        engine.tick()
        return engine

    def publish_all_due(self) -> None:
        """From the look at what is due to the recorded positions."""
        self._ready.pop().tick()


class LateBroker:
    """Lets replicas read their positions before it lets them publish."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.is_away = True

    def prepare(self) -> None:
        if self.is_away:
            raise BrokerUnavailable("not yet")
        self._publisher.prepare()

    def publish(self, dues: Sequence[Due]) -> None:
        self._publisher.publish(dues)

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
