"""A burst that two replicas share, in processes of their own, beside a burst of one alone."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import multiprocessing.connection
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any

from celery import Celery
from celery.beat import ScheduleEntry

from celery_singleton_lock import open_store
from celery_singleton_lock.beat.engine import Engine
from celery_singleton_lock.beat.entries import Due, PlannedEntry
from celery_singleton_lock.beat.plan import CatchUpRule
from celery_singleton_lock.beat.publisher import Publisher
from celery_singleton_lock.beat.slots import Grid
from celery_singleton_lock.testing.servers import RedisServer

from .measure import Answer, answer, promised, until_kept
from .promises import SHARED_BURST
from .replicas import on_all_cores

START_S = 3.0
ENTRIES_READ_A_SECOND = 4_000
"""Replicas start, read all positions, and meet, before anything is due."""
JUST_S = 0.3
ATTEMPTS = 3
RULE = CatchUpRule("all", timedelta(minutes=10), timedelta(minutes=10))
_spawning = multiprocessing.get_context("spawn")


def shared_bursts(entries: int, rounds: int) -> Iterator[Answer]:
    question = promised(SHARED_BURST, "two", "one")
    with RedisServer() as server:
        numbers = itertools.count()

        def measure() -> list[Answer]:
            samples: dict[str, list[float]] = {"two": [], "one": []}
            for _ in range(rounds):
                for name, replicas in (("two", 2), ("one", 1)):
                    took = burst(server.url, f"burst{next(numbers)}", replicas, entries)
                    samples[name].append(took / entries)
            return [answer(question, samples)]

        # A single round is too short to be worth a repetition.
        yield from until_kept(measure, repeats=1 if rounds > 1 else 0)


def burst(
    url: str, prefix: str, replicas: int, entries: int, just_before: Callable[[], None] = lambda: None
) -> float:
    """Seconds from the instant at which all entries are due to the last publish of any replica.

    `just_before` is called when all are ready and nothing is due yet.
    """
    start_s = START_S * max(1.0, replicas / 2) + entries / ENTRIES_READ_A_SECOND
    for attempt in itertools.count(1):
        try:
            due_at = time.time() + start_s * attempt
            return _burst(url, f"{prefix}-{attempt}", replicas, entries, due_at, just_before)
        except EOFError:  # one was not ready in time: the machine is busy
            if attempt == ATTEMPTS:
                raise TimeoutError(
                    f"{replicas} replicas were not ready in {start_s * attempt:.0f} s"
                ) from None
    raise AssertionError("unreachable")


def _burst(
    url: str, prefix: str, replicas: int, entries: int, due_at: float, just_before: Callable[[], None]
) -> float:
    ends, processes = [], []
    with on_all_cores():
        for number in range(replicas):
            ours, theirs = _spawning.Pipe()
            process = _spawning.Process(
                target=replica, args=(theirs, url, prefix, f"replica {number}", entries, due_at)
            )
            process.start()
            theirs.close()  # so that its end is seen here
            ends.append(ours)
            processes.append(process)
    try:
        time.sleep(max(0.0, due_at - JUST_S - time.time()))
        just_before()
        return _last_publish(ends, entries) - due_at
    finally:
        for end in ends:
            end.close()  # ends the replica
        for process in processes:
            process.join(20)


def _last_publish(ends: Sequence[Connection], entries: int) -> float:
    told = dict.fromkeys(ends, (0, 0.0))
    give_up_at = time.monotonic() + 60
    while sum(count for count, _ in told.values()) < entries:
        multiprocessing.connection.wait(ends, timeout=1)
        for end in ends:
            if end.poll():
                told[end] = end.recv()
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"only {sorted(told.values())} of {entries} were published")
    return max(at for _, at in told.values())


def replica(told: Connection, url: str, prefix: str, name: str, entries: int, due_at: float) -> None:
    """Run until nobody listens; tell how many were published, and when the last."""
    logging.disable(logging.WARNING)
    app = Celery("bench", broker=url, set_as_current=False)
    schedule = {
        f"entry {number}": ScheduleEntry(
            f"entry {number}", "bench.noop", schedule=60, args=(number,), app=app
        )
        for number in range(entries)
    }
    publisher = CountingPublisher(Publisher(app, schedule.__getitem__, on_refused=_fail))
    publisher.prepare()
    with closing(open_store(url, prefix=prefix)) as store:
        engine = Engine(
            store,
            publisher,
            replica=name,
            slot_ttl=timedelta(seconds=3),
            lock_ttl=timedelta(seconds=30),
            on_missed=_fail,
        )
        grid = Once(datetime.fromtimestamp(due_at, UTC))
        engine.follow([PlannedEntry(each, f"beat:{each}", grid, RULE) for each in schedule])
        engine.tick()
        if time.time() > due_at - 1.5:
            return  # not ready in time
        # A pipe whose other end is closed can be read: there is its end.
        while not told.poll(engine.tick()):
            if publisher.count:
                told.send((publisher.count, publisher.last_at))


class Once(Grid):
    def __init__(self, at: datetime) -> None:
        self._at = at

    def next(self, after: datetime) -> datetime | None:
        return self._at if after < self._at else None


class CountingPublisher:
    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self.count = 0
        self.last_at = 0.0

    def prepare(self) -> None:
        self._publisher.prepare()

    def publish(self, dues: Sequence[Due]) -> None:
        self._publisher.publish(dues)
        self.count += len(dues)
        self.last_at = time.time()

    def publish_anew(self, dues: Sequence[Due]) -> None:
        self._publisher.publish_anew(dues)

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        self._publisher.publish_again(messages)


def _fail(due: object) -> None:
    raise AssertionError(f"{due} was not published")
