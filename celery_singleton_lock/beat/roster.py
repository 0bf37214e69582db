"""All entries by name: the lines of ``beat_schedule``, what the book added, and jobs of their own."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from celery_singleton_lock.settings import Settings

from . import book
from .book import Defined, Job, Removed
from .entries import PlannedEntry
from .entry import SingletonEntry, entry_from, grid_for, plan_entry
from .once import once
from .plan import CatchUpRule, job_key
from .slots import BoundedGrid, Grid, OnceGrid

logger = logging.getLogger(__name__)

_MICROSECOND: Final = timedelta(microseconds=1)
_WHATEVER_ITS_AGE: Final = CatchUpRule("all", timedelta(days=365_000 // 4), timedelta(0))


class Roster:
    """`static` is what Celery takes for the schedule, also when that changes."""

    def __init__(self, app: Any, settings: Settings, static: Mapping[str, Any]) -> None:
        self._app = app
        self._app_name = app.main or ""
        self._settings = settings
        self.static = static
        self._defined: dict[str, tuple[SingletonEntry, PlannedEntry]] = {}
        self._jobs: dict[str, Job] = {}

    def entry_of(self, name: str) -> Any:
        """The entry to publish. Raises KeyError if there is none of that name any more."""
        return self.static[name] if name in self.static else self._defined[name][0]

    def turn(self, statement: Defined | Job | Removed) -> tuple[list[PlannedEntry], list[str]]:
        """Take a statement of the book in: the entries that are new or changed by it, and the keys of
        those that are gone."""
        match statement:
            case Defined(name=name):
                return self._define(statement) + self._jobs_of(name), []
            case Job():
                self._jobs[statement.id] = statement
                return self._planned_job(statement), []
            case Removed(page=page) if page.startswith(book.ENTRY):
                return [], self._undefine(page.removeprefix(book.ENTRY))
            case Removed(page=page) if page.startswith(book.JOB):
                job = self._jobs.pop(page.removeprefix(book.JOB), None)
                return [], [self._job_key(job)] if job else []
        return [], []

    def _define(self, defined: Defined) -> list[PlannedEntry]:
        name = defined.name
        if name in self.static:
            logger.warning("dynamic_entry_ignored entry=%r: beat_schedule has one of that name", name)
            return []
        try:
            entry = entry_from(defined, self._app)
            planned = replace(
                plan_entry(entry, self._settings, self._app_name),
                mark="",
                begins=defined.at,
                last_page=book.ENTRY + name if isinstance(entry.schedule, once) else None,
            )
        except Exception as error:  # noqa: BLE001 - whatever somebody wrote, the others are published
            logger.warning("dynamic_entry_not_understood entry=%r error=%r", name, error)
            return []
        self._defined[name] = (entry, planned)
        return [planned]

    def _undefine(self, name: str) -> list[str]:
        gone = self._defined.pop(name, None)
        jobs = [self._job_key(job) for job in self._jobs.values() if job.entry == name]
        return [gone[1].key, *jobs] if gone else []

    def _jobs_of(self, name: str) -> list[PlannedEntry]:
        jobs = [job for job in self._jobs.values() if job.entry == name]
        return [planned for job in jobs for planned in self._planned_job(job)]

    def _planned_job(self, job: Job) -> list[PlannedEntry]:
        try:
            entry = self.entry_of(job.entry)
        except KeyError:
            # Another replica may know it: one with a newer configuration, say.
            logger.warning("schedule_job_without_entry job=%s entry=%r", job.id, job.entry)
            return []
        grid: Grid
        if job.kind == "trigger" or job.start is None:
            grid, begins = OnceGrid(job.at), job.at - _MICROSECOND
        else:
            grid, begins = BoundedGrid(grid_for(entry), job.start, job.end), job.start - _MICROSECOND
        return [
            PlannedEntry(
                job.entry,
                self._job_key(job),
                grid,
                _WHATEVER_ITS_AGE,
                begins=begins,
                last_page=book.JOB + job.id,
                is_job=True,
                fills_gaps=job.kind == "backfill",
            )
        ]

    def _job_key(self, job: Job) -> str:
        return job_key(self._app_name, job.entry, job.kind, job.id)
