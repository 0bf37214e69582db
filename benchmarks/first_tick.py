"""Starting with a large schedule: the first tick of beat beside stock beat's, each in a process.

Run as a module it makes one scheduler, ticks once, and says what that took.
"""

from __future__ import annotations

import json
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from celery import Celery
from celery.beat import PersistentScheduler
from celery.schedules import crontab

from celery_singleton_lock import SingletonScheduler
from celery_singleton_lock.testing.servers import RedisServer

from .measure import Answer, Question, Unit, answer

Figures = dict[str, float]


def first_ticks(entries: int, rounds: int) -> Iterator[Answer]:
    """Each round against an empty store and without a schedule file: nothing is known yet."""
    samples: dict[str, list[Figures]] = {"ours": [], "stock": []}
    for _ in range(rounds):
        for kind, figures in samples.items():
            with RedisServer() as server, tempfile.TemporaryDirectory() as place:
                figures.append(_in_a_process(kind, entries, server.url, Path(place)))
    units: tuple[Unit, ...] = ("seconds", "bytes")
    for name, unit in zip(("first tick", "memory of the process"), units, strict=True):
        question = Question(f"{name} to stock beat's", "ours", "stock", at_most=1.0)
        values = {kind: [each[unit] for each in figures] for kind, figures in samples.items()}
        yield answer(question, values, unit)


def _in_a_process(kind: str, entries: int, url: str, place: Path) -> Figures:
    command = [sys.executable, "-m", "benchmarks.first_tick", kind, str(entries), url, str(place)]
    figures: Figures = json.loads(subprocess.check_output(command))
    return figures


def main(kind: str, entries: int, url: str, place: Path) -> Figures:
    logging.disable(logging.WARNING)
    app = Celery("bench", broker=url, set_as_current=False)
    # Not due for months: a tick publishes nothing.
    app.conf.beat_schedule = {
        f"entry {number}": {
            "task": "bench.noop",
            "schedule": crontab(month_of_year=1 + (time.gmtime().tm_mon + 5) % 12, app=app),
            "args": (number,),
        }
        for number in range(entries)
    }
    began = time.perf_counter()
    if kind == "ours":
        scheduler = SingletonScheduler(app)
    else:
        scheduler = PersistentScheduler(app, schedule_filename=str(place / "schedule"))
    scheduler.tick()
    seconds = time.perf_counter() - began
    figures = {"seconds": seconds, "bytes": _memory()}
    scheduler.close()
    return figures


def _memory() -> float:
    """The most that this process ever had: with the schedule, which is the same for both."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))))
