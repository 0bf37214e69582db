"""The schedule at run time: what people and programs may say to all replicas of beat."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Final

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.recovery.audit import record as audit
from celery_singleton_lock.recovery.audit import whoami
from celery_singleton_lock.settings import Settings

from . import book, definitions
from .book import Defined, Job
from .entry import SingletonEntry, grid_for
from .entry_state import Contents, EntryState
from .moments import checked
from .once import once
from .plan import as_slot, entry_key, job_key, run_id, slots_between

MOST_BACKFILLED: Final = 1_000_000
"""A year of minutes is half of it. To count more takes longer than people wait."""


@dataclass(frozen=True, slots=True)
class Backfill:
    """A job that publishes `slots`, each as the run that it would have been."""

    id: str
    slots: int
    entry: str = ""


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
        self._book = beat_group(self._app_name)
        self._by = by or whoami()

    # Entries

    def add(
        self,
        name: str,
        task: str,
        schedule: Any,
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        why: str = "",
        **more: Any,
    ) -> None:
        """Add an entry. `schedule` is a crontab, schedule, solar or once, a number of seconds, a
        timedelta, or a datetime for one run; `more` is what a line of ``beat_schedule`` may have."""
        if name in self.contents().entries:
            raise ConfigurationError(
                f"there is an entry {name!r} already: change it, or give this one another name"
            )
        self._define(name, task=task, schedule=schedule, args=args, kwargs=kwargs, **more)
        self._audit("entry_added", name, why, task=task, schedule=str(schedule))

    def change(self, name: str, *, why: str = "", **changes: Any) -> None:
        """Change some of what `add` was given. Slots that were not published until now are left out."""
        defined = self._dynamic(name)
        try:
            before = definitions.decode(defined.definition, self._app)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ConfigurationError(
                f"entry {name!r} is not understood here ({error}): remove it, and add it anew"
            ) from None
        self._define(name, **{**before, **changes})
        self._audit("entry_changed", name, why, changed=", ".join(sorted(changes)))

    def remove(self, name: str, *, why: str = "") -> None:
        """Remove an entry that was added; its jobs are not done any more."""
        self._dynamic(name)
        self._store.write(self._book, [book.removal(book.ENTRY + name)])
        self._audit("entry_removed", name, why)

    def _define(self, name: str, *, schedule: Any, **more: Any) -> None:
        if isinstance(schedule, datetime):
            schedule = once(schedule, app=self._app)
        if isinstance(schedule, once) and schedule.at <= self._store.now():
            raise ConfigurationError(f"entry {name!r} is due once, at {schedule.at}: that is past")
        entry = SingletonEntry(name=name, app=self._app, schedule=schedule, **more)
        self._store.write(self._book, [book.entry_page(name, definitions.encode(entry))])

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
        self._audit("entry_paused" if is_paused else "entry_resumed", name, why)

    def trigger(self, name: str, *, why: str = "") -> str:
        """Publish a run of an entry now, apart from its schedule; return the run's id."""
        self._entry(name)
        page = book.trigger_page(uuid.uuid4().hex, name, self._by)
        [written] = self._store.write(self._book, [page])
        run = run_id(self._app_name, name, as_slot(written.version))
        self._audit("entry_triggered", name, why, run=run)
        return run

    def backfill(self, name: str, start: datetime, end: datetime, *, why: str = "") -> Backfill:
        """Publish the slots of an entry from `start` to `end`. Each has the id of the run that it would
        have been: one that was executed, and is remembered, is not executed again."""
        slots = self.slots(name, start, end)
        if end > self._store.now():
            raise ConfigurationError(f"a backfill ends in the past, but {end} is to come")
        if not slots:
            raise ConfigurationError(f"entry {name!r} has no slot from {start} to {end}")
        job = uuid.uuid4().hex
        page = book.backfill_page(job, name, slots[0], slots[-1], self._by)
        self._store.write(self._book, [page])
        bounds = {"start": slots[0].isoformat(), "end": slots[-1].isoformat()}
        self._audit("entry_backfilled", name, why, slots=len(slots), **bounds)
        return Backfill(job, len(slots), name)

    def cancel(self, job: str, *, why: str = "") -> Job | None:
        """Publish no more of a trigger or backfill, which is returned; None: there is none, so it may
        be done. `job` is its id, or as much of its beginning as no other has. What was published is
        executed all the same."""
        found = [each for each in self.jobs() if each.id.startswith(job)]
        if not found:
            return None
        if len(found) > 1:
            raise ConfigurationError(f"{len(found)} jobs begin with {job!r}: give more of it")
        [cancelled] = found
        self._store.write(self._book, [book.removal(book.JOB + cancelled.id)])
        self._audit("job_cancelled", cancelled.entry, why, kind=cancelled.kind, job=cancelled.id)
        return cancelled

    # What there is

    def entries(self) -> list[EntryState]:
        """All entries, by name."""
        contents = self.contents()
        records = self._store.peek([entry_key(self._app_name, name) for name in contents.entries])
        return contents.states(records, self._store.now())

    def entry(self, name: str) -> EntryState:
        """One of them."""
        self._entry(name)
        return next(state for state in self.entries() if state.name == name)

    def next_slots(self, name: str, count: int) -> list[datetime]:
        """The slots of an entry that come next, as though it were not paused; fewer, if it ends."""
        grid = grid_for(self._entry(name))
        slots, _ = slots_between(grid, self._store.now(), datetime.max.replace(tzinfo=UTC), count)
        return slots

    def slots(self, name: str, start: datetime, end: datetime) -> list[datetime]:
        """The slots of an entry from `start` to `end`, whether they were published or not."""
        before = checked("the start", start).astimezone(UTC) - timedelta(microseconds=1)
        checked("the end", end)
        slots, _ = slots_between(grid_for(self._entry(name)), before, end, MOST_BACKFILLED + 1)
        if len(slots) > MOST_BACKFILLED:
            raise ConfigurationError(
                f"entry {name!r} has more than {MOST_BACKFILLED:,} slots from {start} to {end}: take "
                "a shorter time"
            )
        return slots

    def jobs(self) -> list[Job]:
        """Triggers and backfills that are not done yet, oldest first."""
        return [said for said in self._pages() if isinstance(said, Job)]

    def position_of(self, backfill: Backfill | Job) -> datetime | None:
        """Up to which slot a backfill is published; None: it has not begun, or is done."""
        [record] = self._store.peek([job_key(self._app_name, backfill.entry, "backfill", backfill.id)])
        return as_slot(record.position) if record and record.position is not None else None

    def replicas(self) -> list[str]:
        """The replicas of beat that are alive. Where there is none, what is said here waits for one."""
        return list(self._store.meet(self._book, "", timedelta(0)).members)

    def contents(self) -> Contents:
        """All that is said of the schedule, also what is ignored or not understood."""
        return Contents.of(self._app, self._pages())

    def _pages(self) -> list[book.Statement]:
        said = map(book.read_page, self._store.read(self._book).pages)
        return [statement for statement in said if statement is not None]

    def _entry(self, name: str) -> SingletonEntry:
        entries = self.contents().entries
        if name not in entries:
            hint = _did_you_mean(name, entries)
            if not hint and "django" in str(self._app.conf.beat_scheduler):
                hint = "; those of the Django admin are not known here"
            raise ConfigurationError(f"there is no entry {name!r}{hint}")
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

    def _audit(self, action: str, name: str, why: str, **facts: object) -> None:
        audit(action, self._by, app=self._app, entry=name, why=why, **facts)


def _did_you_mean(name: str, known: Mapping[str, Any]) -> str:
    close = get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""
