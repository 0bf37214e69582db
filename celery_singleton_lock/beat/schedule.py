"""The schedule at run time: what people and programs may say to all replicas of beat."""

from __future__ import annotations

import getpass
import logging
import socket
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.settings import Settings

from . import book, definitions
from .book import Defined, Job, Paused
from .entry import SingletonEntry, grid_for
from .once import once
from .plan import as_slot, entry_key, run_id, slots_between

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryState:
    """An entry, as it stands in the store. `last_slot`: up to there all is published."""

    name: str
    task: str
    schedule: str
    is_dynamic: bool
    is_paused: bool
    paused_by: str
    paused_why: str
    last_slot: datetime | None
    next_slot: datetime | None


@dataclass(frozen=True, slots=True)
class Backfill:
    """A job that publishes `slots`, each as the run that it would have been."""

    id: str
    slots: int


class Schedule:
    """Changes are seen by all replicas within a second, and outlive them all. Entries of
    ``beat_schedule`` can be paused, triggered and backfilled; only those added here can be changed and
    removed.

    Raises `ConfigurationError` for what cannot be, and `StoreUnavailable`: then ask again.
    """

    def __init__(self, app: Any, settings: Settings, store: LeaseStore, *, by: str = "") -> None:
        self._app = app
        self._app_name = app.main or ""
        self._settings = settings
        self._store = store
        self._book = book.book_of(self._app_name)
        self._by = by or _whoever_runs_this()

    # Entries

    def add(
        self,
        name: str,
        task: str,
        schedule: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Add an entry. `schedule` is a crontab, schedule, solar or once, a number of seconds, a
        timedelta, or a datetime for one run; `more` is what a line of ``beat_schedule`` may have."""
        if name in self._entries():
            raise ConfigurationError(
                f"there is an entry {name!r} already: change it, or give this one another name"
            )
        self._define(name, task=task, schedule=schedule, args=args, kwargs=kwargs, **more)

    def change(self, name: str, **changes: Any) -> None:
        """Change some of what `add` was given. Slots that were not published until now are left out."""
        before = definitions.decode(self._dynamic(name).definition, self._app)
        self._define(name, **{**before, **changes})

    def remove(self, name: str) -> None:
        """Remove an entry that was added; its jobs are not done any more."""
        self._dynamic(name)
        self._store.write(self._book, [book.removal(book.ENTRY + name)])
        self._audit("removed", name)

    def _define(self, name: str, *, schedule: Any, **more: Any) -> None:
        if isinstance(schedule, datetime):
            schedule = once(schedule, app=self._app)
        if isinstance(schedule, once) and schedule.at <= self._store.now():
            raise ConfigurationError(f"entry {name!r} is due once, at {schedule.at}: that is past")
        entry = SingletonEntry(name=name, app=self._app, schedule=schedule, **more)
        self._store.write(self._book, [book.entry_page(name, definitions.encode(entry))])
        self._audit("defined", name)

    # Turns of the key

    def pause(self, name: str, why: str = "") -> None:
        """Publish no slot of an entry until it is resumed. Jobs on it are done all the same."""
        self._pause(name, why, is_paused=True)

    def resume(self, name: str, why: str = "") -> None:
        """Go on with the slots from now on: those that were passed over stay so."""
        self._pause(name, why, is_paused=False)

    def _pause(self, name: str, why: str, *, is_paused: bool) -> None:
        self._entry(name)
        page = book.pause_page(name, is_paused=is_paused, by=self._by, why=why)
        self._store.write(self._book, [page])
        self._audit("paused" if is_paused else "resumed", name)

    def trigger(self, name: str) -> str:
        """Publish a run of an entry now, apart from its schedule; return the run's id."""
        self._entry(name)
        page = book.trigger_page(uuid.uuid4().hex, name, self._by)
        [written] = self._store.write(self._book, [page])
        self._audit("triggered", name)
        return run_id(self._app_name, name, as_slot(written.version))

    def backfill(self, name: str, start: datetime, end: datetime) -> Backfill:
        """Publish the slots of an entry from `start` to `end`. Each has the id of the run that it would
        have been: one that was executed, and is remembered, is not executed again."""
        entry = self._entry(name)
        for bound in (start, end):
            if bound.tzinfo is None:
                raise ConfigurationError(f"{bound!r} has no time zone: give one, say tzinfo=UTC")
        if end > self._store.now():
            raise ConfigurationError(f"a backfill ends in the past, but {end} is to come")
        before = start.astimezone(UTC) - timedelta(microseconds=1)
        slots, _ = slots_between(grid_for(entry), before, end)
        if not slots:
            raise ConfigurationError(f"entry {name!r} has no slot from {start} to {end}")
        job = uuid.uuid4().hex
        page = book.backfill_page(job, name, slots[0], slots[-1], self._by)
        self._store.write(self._book, [page])
        self._audit(f"backfilled from {slots[0]} to {slots[-1]}", name)
        return Backfill(job, len(slots))

    # What there is

    def entries(self) -> list[EntryState]:
        """All entries, by name."""
        pages = self._pages()
        paused = {said.name: said for said in pages if isinstance(said, Paused)}
        entries = sorted(self._entries().items())
        records = self._store.peek([entry_key(self._app_name, name) for name, _ in entries])
        now, static = self._store.now(), self._app.conf.beat_schedule
        states = []
        for (name, entry), record in zip(entries, records, strict=True):
            pause = paused.get(name)
            stopped = pause is not None and pause.is_paused
            position = as_slot(record.position) if record and record.position is not None else None
            states.append(
                EntryState(
                    name,
                    entry.task,
                    repr(entry.schedule),
                    name not in static,
                    stopped,
                    pause.by if pause and stopped else "",
                    pause.why if pause and stopped else "",
                    position,
                    None if stopped else grid_for(entry).next(max(position or now, now)),
                )
            )
        return states

    def jobs(self) -> list[Job]:
        """Triggers and backfills that are not done yet, oldest first."""
        return [said for said in self._pages() if isinstance(said, Job)]

    def replicas(self) -> list[str]:
        """The replicas of beat that are alive. Where there is none, what is said here waits for one."""
        return list(self._store.meet(self._book, "", timedelta(0)).members)

    def _pages(self) -> list[book.Statement]:
        said = map(book.read_page, self._store.read(self._book).pages)
        return [statement for statement in said if statement is not None]

    def _entries(self) -> dict[str, SingletonEntry]:
        defined = {said.name: said for said in self._pages() if isinstance(said, Defined)}
        dynamic = {
            name: definitions.decode(said.definition, self._app) for name, said in defined.items()
        }
        given = {**dynamic, **self._app.conf.beat_schedule}
        return {
            name: SingletonEntry(**{"name": name, "app": self._app, **fields})
            for name, fields in given.items()
        }

    def _entry(self, name: str) -> SingletonEntry:
        entries = self._entries()
        if name not in entries:
            raise ConfigurationError(f"there is no entry {name!r}{_did_you_mean(name, entries)}")
        return entries[name]

    def _dynamic(self, name: str) -> Defined:
        if name in self._app.conf.beat_schedule:
            raise ConfigurationError(
                f"entry {name!r} stands in beat_schedule: change it there, or pause it"
            )
        defined = {said.name: said for said in self._pages() if isinstance(said, Defined)}
        if name not in defined:
            raise ConfigurationError(f"there is no entry {name!r}{_did_you_mean(name, defined)}")
        return defined[name]

    def _audit(self, what: str, name: str) -> None:
        logger.warning("schedule_changed entry=%r what=%r by=%r", name, what, self._by)


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _whoever_runs_this() -> str:
    with suppress(OSError, KeyError):
        return f"{getpass.getuser()}@{socket.gethostname()}"
    return f"somebody@{socket.gethostname()}"
