"""A scheduler of Celery beat in a process of its own: ours, Celery's, and those of others.

Run as a module it makes one with so many entries, has it do one thing, and says what that took::

    python -m benchmarks.schedulers {ours|stock|redbeat|django} {first-tick|burst|idle} ENTRIES PLACE
"""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, Literal

from celery import Celery
from celery.beat import PersistentScheduler, Service
from celery.schedules import crontab, schedule
from celery.signals import beat_init

from celery_singleton_lock import SingletonScheduler, once
from celery_singleton_lock.testing.servers import RedisServer

from .environment import version_of
from .replicas import commands_of, cpu_seconds, on_all_cores

Kind = Literal["ours", "stock", "redbeat", "django"]
Figures = dict[str, float]

NAMES: Final[Mapping[Kind, str]] = {
    "ours": "ours",
    "stock": "stock beat",
    "redbeat": "RedBeat",
    "django": "django-celery-beat",
}
PACKAGES: Final[Mapping[Kind, str]] = {
    "ours": "celery-singleton-lock",
    "stock": "celery",
    "redbeat": "celery-redbeat",
    "django": "django-celery-beat",
}
TASK: Final = "bench.noop"
DAY: Final = timedelta(days=1)
READY_S: Final = 3.0
ENTRIES_READ_A_SECOND: Final = 5_000
"""A replica of ours reads its positions, and meets the others, before anything is due."""
PATIENCE_S: Final = 90.0


# Asking one, from outside


def is_there(kind: Kind) -> bool:
    return version_of(PACKAGES[kind]) is not None


def first_tick(kind: Kind, entries: int) -> Figures:
    """On an empty store and without a schedule file: `seconds`, and `bytes` of the whole process."""
    with RedisServer() as server, _process(kind, "first-tick", entries, server.url) as process:
        return _said(process)


def burst(kind: Kind, entries: int, *, store_url: str | None = None) -> float:
    """Seconds from the moment at which all entries are due to the last message in the queue.

    The store is on another server than the broker if `store_url` says so.
    """
    with RedisServer() as broker:
        client: Any = broker.connect()
        with _process(kind, "burst", entries, broker.url, store_url) as process:
            due_at = _said(process)["due_at"]
            until = max(time.time(), due_at) + PATIENCE_S
            while client.llen("celery") < entries:
                if time.time() > until:
                    raise TimeoutError(f"{client.llen('celery')} of {entries} were published")
                if process.poll() is not None:
                    raise RuntimeError(f"it ended with {client.llen('celery')} of {entries} published")
                time.sleep(0.002)
            return time.time() - due_at


def idle(kind: Kind, entries: int, seconds: float) -> Figures:
    """With nothing due: `cpu` in percent of a core, and `commands` a second to Redis."""
    with RedisServer() as server, _process(kind, "idle", entries, server.url) as process:
        _said(process)
        time.sleep(3)  # it has ticked, and does nothing any more
        before, began = cpu_seconds(process.pid), time.monotonic()
        commands = commands_of(server, seconds)
        used, took = cpu_seconds(process.pid) - before, time.monotonic() - began
    return {"cpu": 100 * used / took, "commands": commands / took}


@contextmanager
def _process(
    kind: Kind, scene: str, entries: int, broker_url: str, store_url: str | None = None
) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as place, on_all_cores():
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.schedulers", kind, scene, str(entries), place],
            env=os.environ | {"BROKER": broker_url, "STORE": store_url or broker_url},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


def _said(process: Any) -> Figures:
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"it ended by itself, with code {process.wait()}")
    figures: Figures = json.loads(line)
    return figures


# Being one


def main(kind: Kind, scene: str, entries: int, place: Path) -> None:
    logging.disable(logging.WARNING)
    app = Celery("bench", broker=os.environ["BROKER"], set_as_current=False)
    app.conf.update(
        singleton_lock_url=os.environ["STORE"],
        redbeat_redis_url=os.environ["STORE"],
        # Nobody finds what somebody else has left there.
        singleton_key_prefix=f"bench{os.getpid()}",
        redbeat_key_prefix=f"bench{os.getpid()}:",
        result_expires=None,
    )
    maker = SCHEDULERS[kind](app, place, entries)
    due_at = time.time() + maker.lead_s
    maker.prepare(due_at if scene == "burst" else None)
    began = time.perf_counter()
    service = maker.service()
    if scene == "first-tick":
        # Celery's loop begins with this: RedBeat takes its lock here.
        beat_init.send(sender=service)
        service.scheduler.tick()
        _say(seconds=time.perf_counter() - began, bytes=_memory())
    elif scene == "burst":
        _ = service.scheduler  # which is made, and has read its entries, before the clock runs
        _say(due_at=due_at if maker.lead_s else time.time())
        service.start()
    else:
        _ = service.scheduler
        _say()
        service.start()


def _say(**figures: float) -> None:
    print(json.dumps(figures), flush=True)


def _memory() -> float:
    """The most that this process ever had: with the schedule, which is the same for all."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


class Maker:
    """Makes a scheduler whose entries are all due, or none for months. What its users did before it is
    started is done in `prepare`, and is not measured."""

    scheduler: Any

    def __init__(self, app: Celery, place: Path, entries: int) -> None:
        self.app, self.place, self.entries = app, place, entries

    @property
    def lead_s(self) -> float:
        """How long before its entries are due it must be started. 0: they may be due before."""
        return 0.0

    def prepare(self, due_at: float | None) -> None:
        self.app.conf.beat_schedule = {
            f"entry {number}": {"task": TASK, "args": (number,), **self._when(due_at)}
            for number in range(self.entries)
        }

    def _when(self, due_at: float | None) -> Mapping[str, Any]:
        raise NotImplementedError

    def service(self) -> Service:
        return Service(
            self.app, scheduler_cls=self.scheduler, schedule_filename=str(self.place / "schedule")
        )

    def in_months(self) -> crontab:
        return crontab(month_of_year=1 + (time.gmtime().tm_mon + 5) % 12, app=self.app)


class Ours(Maker):
    scheduler = SingletonScheduler

    @property
    def lead_s(self) -> float:
        return READY_S + self.entries / ENTRIES_READ_A_SECOND

    def _when(self, due_at: float | None) -> Mapping[str, Any]:
        if due_at is None:
            return {"schedule": self.in_months()}
        return {"schedule": once(datetime.fromtimestamp(due_at, UTC))}


class Stock(Maker):
    scheduler = PersistentScheduler

    def _when(self, due_at: float | None) -> Mapping[str, Any]:
        if due_at is None:
            return {"schedule": self.in_months()}
        return {"schedule": schedule(DAY, app=self.app), "last_run_at": self.app.now() - 2 * DAY}


class RedBeat(Maker):
    @property
    def scheduler(self) -> Any:
        from redbeat import RedBeatScheduler

        return RedBeatScheduler

    def prepare(self, due_at: float | None) -> None:
        super().prepare(due_at)
        if due_at is None:
            return
        from redbeat import RedBeatSchedulerEntry

        # As its users make entries at run time: those of the configuration begin to count at their
        # first start.
        for name, fields in self.app.conf.beat_schedule.items():
            entry = RedBeatSchedulerEntry(name, fields["task"], fields["schedule"], app=self.app)
            entry.last_run_at = self.app.now() - 2 * DAY
            entry.save()
        self.app.conf.beat_schedule = {}

    def _when(self, due_at: float | None) -> Mapping[str, Any]:
        return {"schedule": schedule(DAY, app=self.app) if due_at else self.in_months()}


class Django(Maker):
    """Its entries are rows, here of an SQLite file: made before it is started."""

    @property
    def scheduler(self) -> Any:
        from django_celery_beat.schedulers import DatabaseScheduler

        return DatabaseScheduler

    def prepare(self, due_at: float | None) -> None:
        import django
        from django.conf import settings
        from django.core.management import call_command

        file = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(self.place / "beat.db")}
        settings.configure(
            DATABASES={"default": file},
            INSTALLED_APPS=["django_celery_beat"],
            LOGGING_CONFIG=None,
            USE_TZ=True,
        )
        django.setup()
        call_command("migrate", verbosity=0)
        from django_celery_beat.models import IntervalSchedule, PeriodicTask

        daily = IntervalSchedule.objects.create(every=1, period=IntervalSchedule.DAYS)
        last = self.app.now() - (2 * DAY if due_at else timedelta(0))
        PeriodicTask.objects.bulk_create(
            PeriodicTask(name=f"entry {n}", task=TASK, args=f"[{n}]", interval=daily, last_run_at=last)
            for n in range(self.entries)
        )


SCHEDULERS: Final[Mapping[Kind, type[Maker]]] = {
    "ours": Ours,
    "stock": Stock,
    "redbeat": RedBeat,
    "django": Django,
}

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4]))  # type: ignore[arg-type]
