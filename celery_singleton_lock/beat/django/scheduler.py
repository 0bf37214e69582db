"""`SingletonDatabaseScheduler`: the schedule is in Django's database, and edited in its admin."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from django.db import Error as DatabaseError
from django_celery_beat.schedulers import DatabaseScheduler

from celery_singleton_lock.beat.entries import Due, PlannedEntry
from celery_singleton_lock.beat.scheduler import SingletonSchedulerMixin
from celery_singleton_lock.core.clock import boottime

from .books import Books
from .clerk import Clerk
from .row import WHATEVER_ITS_AGE, RowEntry

logger = logging.getLogger(__name__)

_MARK: Final = "database"
"""The same for every definition: which one counts is said by the database, not by who started last."""


class SingletonDatabaseScheduler(SingletonSchedulerMixin, DatabaseScheduler):  # type: ignore[misc]
    """Set ``beat_scheduler = "celery_singleton_lock.beat.django:SingletonDatabaseScheduler"`` and start
    as many beats as you like. No replica exits, nor stops publishing what it knows, because Django's
    database is away.

    `last_run_at` of a row is the last slot that was published.
    """

    Entry = RowEntry

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        self._ending: dict[str, tuple[RowEntry, PlannedEntry]] = {}
        self._clerk = Clerk(
            Books(self.Model),
            prepare=self._write_configured,
            last_change=self.Changes.last_change,
            read=self.enabled_models,
            make=lambda model: self.Entry(model, app=app),
        )
        super().__init__(app, *args, **kwargs)

    def setup_schedule(self) -> None:
        self._clerk.start()

    @property
    def schedule(self) -> Mapping[str, RowEntry]:
        """What the database said last."""
        return self._clerk.entries

    def enabled_models(self) -> list[Any]:
        return list(self.enabled_models_qs())

    def enabled_models_qs(self) -> Any:
        """All of them, however far away: the other class leaves out what is not due soon."""
        return self.Model.objects.enabled()

    def tick(self, *args: Any, **kwargs: Any) -> float:
        wait = super().tick(*args, **kwargs)
        try:
            self._note_ends()
        except Exception:
            logger.exception("django_ends_not_noted")
        return wait

    def plan_entry(self, entry: RowEntry) -> PlannedEntry:
        now = self._engine.now if self._engine else None
        if entry.unseen_since is not None and now is not None:
            # It may have been enabled without a trace in the row, as the admin's actions do.
            entry.begin_after(now - timedelta(seconds=boottime() - entry.unseen_since))
            entry.unseen_since = None
        planned = replace(super().plan_entry(entry), mark=_MARK, begins=entry.begins)
        if entry.is_once:
            planned = replace(planned, rule=WHATEVER_ITS_AGE)
        if entry.slot or entry.expires:
            self._ending[entry.name] = entry, planned
        return planned

    def after_publish(self, due: Due) -> None:
        entry = self._followed.get(due.entry)
        if entry is not None:
            self._clerk.note_run(entry, due.slot)

    def close(self) -> None:
        was_ticking = self._is_ticking
        super().close()
        if was_ticking:  # then this is a signal handler, and we are called again
            return
        self._note_ends()
        self._clerk.stop()

    def sync(self) -> None:
        """Nothing to do: the clerk writes."""

    def update_from_dict(self, mapping: Mapping[str, Any]) -> None:
        """Have a row for each of these. Raises if the database is away."""
        for name, fields in mapping.items():
            try:
                self.Entry.from_entry(name, app=self.app, **fields)
            except DatabaseError:
                raise
            except Exception:
                logger.exception("django_row_not_written entry=%r", name)

    def _write_configured(self) -> None:
        self.install_default_entries(None)
        self.update_from_dict(self.app.conf.beat_schedule)

    @property
    def _followed(self) -> Mapping[str, RowEntry]:
        """The schedule of this tick. The clerk may have a newer one by now."""
        return self._roster.static if self._roster else {}

    def _note_ends(self) -> None:
        """Also of what another replica published: that one may have died before it wrote so."""
        schedule = self._followed
        for name, (entry, planned) in list(self._ending.items()):
            if schedule.get(name) is not entry:
                del self._ending[name]
            elif _is_over(entry, planned):
                del self._ending[name]
                self._clerk.note_end(entry)


def _is_over(entry: RowEntry, planned: PlannedEntry) -> bool:
    if planned.position is None:
        return False
    if entry.slot is None and (entry.expires is None or entry.expires > datetime.now(UTC)):
        # By our own clock, which may be wrong: before it has no slot left, nothing is over anyway.
        return False
    return planned.grid.next(planned.position) is None
