"""Schedulers: all entries are due at once, a first start, and nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from celery import Celery

from benchmarks import schedulers
from benchmarks.chapters import Chapter, NotMeasured, Pace
from benchmarks.measure import Answer, Question, answer
from benchmarks.schedulers import NAMES, PACKAGES, Figures, Kind
from celery_singleton_lock.testing.servers import RedisServer

from .turns import Sample, absent, in_turns

LOOP: Final = "a loop of send_task"


@dataclass(frozen=True, slots=True)
class Effort:
    entries: int
    rounds: int
    first_entries: int
    idle_s: float


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(entries=50, rounds=1, first_entries=50, idle_s=1),
    "usual": Effort(entries=1_000, rounds=2, first_entries=2_000, idle_s=12),
    "full": Effort(entries=1_000, rounds=3, first_entries=10_000, idle_s=15),
}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield (
        f"beat: {effort.entries:,} entries due at once, to {LOOP}; times are of one entry",
        bursts(effort),
    )
    yield f"beat: the first tick with {effort.first_entries:,} entries, to stock beat's", starts(effort)
    yield f"beat: one replica with {effort.first_entries:,} entries, nothing due", idle(effort)


def bursts(effort: Effort) -> Iterator[Answer | NotMeasured]:
    entries = effort.entries
    subjects = {LOOP: lambda: loop(entries) / entries}
    subjects |= of_each(lambda kind: schedulers.burst(kind, entries) / entries)
    yield from in_turns(subjects, effort.rounds, against=LOOP)
    yield from absent(PACKAGES.values())


def starts(effort: Effort) -> Iterator[Answer | NotMeasured]:
    """django-celery-beat finds its rows in the database; the others make theirs."""
    subjects = of_each(lambda kind: schedulers.first_tick(kind, effort.first_entries)["seconds"])
    yield from in_turns(subjects, effort.rounds, against=NAMES["stock"])
    yield from absent(PACKAGES.values())


def of_each(measure: Callable[[Kind], float]) -> dict[str, Sample]:
    return {name: partial(measure, kind) for kind, name in NAMES.items() if schedulers.is_there(kind)}


def idle(effort: Effort) -> Iterator[Answer | NotMeasured]:
    """To no other: the least of them is nothing."""
    figures: dict[str, Figures] = {}
    for kind, name in NAMES.items():
        if schedulers.is_there(kind):
            figures[name] = schedulers.idle(kind, effort.first_entries, effort.idle_s)
    for name, each in figures.items():
        samples = {name: [each["cpu"]], "a core": [100.0]}
        yield answer(Question(f"{name}: CPU", name, "a core"), samples, "% of a core")
        samples = {name: [each["commands"]], "one a second": [1.0]}
        yield answer(Question(f"{name}: commands", name, "one a second"), samples, "commands/s")
    yield from absent(PACKAGES.values())


def loop(entries: int) -> float:
    """What everybody would write: one producer, one call after the other."""
    with RedisServer() as broker:
        app = Celery("bench", broker=broker.url, set_as_current=False)
        with app.producer_or_acquire() as producer:
            app.send_task(schedulers.TASK, producer=producer)
            began = time.perf_counter()
            for number in range(entries):
                app.send_task(schedulers.TASK, (number,), producer=producer)
            return time.perf_counter() - began
