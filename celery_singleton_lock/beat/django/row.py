"""A row of `PeriodicTask` as an entry: when it is due, by nothing but what stands in the database.

So every replica, whenever it reads the row, finds the same slots.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.schedules import maybe_schedule, schedule
from django.conf import settings
from django.utils import timezone
from django_celery_beat.clockedschedule import clocked
from django_celery_beat.models import PeriodicTask
from django_celery_beat.schedulers import ModelEntry
from django_celery_beat.tzcrontab import TzAwareCrontab

from celery_singleton_lock.beat.plan import CatchUpRule
from celery_singleton_lock.beat.slots import (
    EPOCH,
    BoundedGrid,
    CrontabGrid,
    Grid,
    IntervalGrid,
    OnceGrid,
    grid_of,
)

WHATEVER_ITS_AGE: Final = CatchUpRule("all", timedelta(days=365 * 100), timedelta(0))
_MICROSECOND: Final = timedelta(microseconds=1)
_WHAT: Final = (
    *("pk", "task", "args", "kwargs", "queue", "exchange", "routing_key"),
    *("headers", "priority", "expire_seconds"),
)
_WHEN: Final = ("start_time", "expires", "one_off")


class RowEntry(ModelEntry):  # type: ignore[misc]
    """What is published is decided by django-celery-beat's own entry; when, by its `grid`.

    Raises ValueError for a row that cannot be understood, and leaves the row as it is.
    """

    def __init__(self, model: Any, app: Any = None) -> None:
        last_run_at = model.last_run_at  # which the other class makes up, where there is none
        super().__init__(model, app=app)
        self.is_once = bool(model.one_off) or isinstance(self.schedule, clocked)
        self.expires = as_utc(model.expires)
        changed, start = as_utc(model.date_changed) or EPOCH, as_utc(model.start_time)
        self.grid = _grid_of(self.schedule, start)
        self.begins = changed
        """No slot up to then is its own."""
        self.slot: datetime | None = None
        """The only one of an entry that runs once; None: it has many, or none."""
        if self.is_once:
            clocked_time = as_utc(model.clocked.clocked_time) if model.clocked else None
            self.slot = _only_slot(clocked_time, self.grid, start, changed)
            self.grid = OnceGrid(self.slot or EPOCH)
            self.begins = (self.slot or changed) - _MICROSECOND
        if self.expires is not None:
            self.grid = BoundedGrid(self.grid, None, self.expires - _MICROSECOND)
        self.begin_after(as_utc(last_run_at))
        self.grid.next(self.begins)  # what cannot be computed is to fail here, not in a tick
        self.when = _when(model)
        self.version = (self.when, *(getattr(model, name) for name in _WHAT))
        if self.is_once:
            self.version += (changed,)
        self.unseen_since: float | None = None
        """Until when it was looked for, and not there as it is now; None: it has always been there."""

    def begin_after(self, moment: datetime | None) -> None:
        """Leave out the slots up to `moment`."""
        if moment is not None:
            self.begins = max(self.begins, moment)

    def _disable(self, model: Any) -> None:
        raise ValueError("its schedule is gone, or its arguments are not JSON")

    # The lines of beat_schedule, as rows. The other class saves them at every start of beat: that would
    # make each a change, and what is changed begins anew.

    @classmethod
    def from_entry(cls, name: str, app: Any = None, **entry: Any) -> RowEntry:
        fields = cls._unpack_fields(**entry)
        rows = PeriodicTask._default_manager
        known = rows.filter(name=name).first()
        if known is None or any(getattr(known, field) != said for field, said in fields.items()):
            known, _ = rows.update_or_create(name=name, defaults=fields)
        return cls(known, app=app)

    @classmethod
    def to_model_schedule(cls, schedule: Any) -> tuple[Any, str]:
        schedule = maybe_schedule(schedule)
        for kind, model, field in cls.model_schedules:
            if isinstance(schedule, kind):
                row = model.from_schedule(schedule)
                if row.pk is None:
                    row.save()
                return row, field
        raise ValueError(f"{schedule!r} has no counterpart in the database")


class ShiftedGrid(Grid):
    """Another grid, with `start` in the place of the epoch."""

    def __init__(self, grid: Grid, start: datetime) -> None:
        self._grid = grid
        self._by = start - EPOCH

    def next(self, after: datetime) -> datetime | None:
        slot = self._grid.next(after - self._by)
        return slot + self._by if slot else None


def _grid_of(given: Any, start: datetime | None) -> Grid:
    grid = grid_of(given)
    if isinstance(given, TzAwareCrontab):
        grid = CrontabGrid(given)  # it differs from a crontab in its time zone only
    elif start and isinstance(grid, IntervalGrid) and isinstance(given, schedule):
        grid = ShiftedGrid(grid, start)
    return BoundedGrid(grid, start, None) if start else grid


def _only_slot(
    clocked_time: datetime | None, grid: Grid, start: datetime | None, changed: datetime
) -> datetime | None:
    """The slot of what runs once: the first one after the row was changed, which it is also when it has
    run. A clocked time that was over by then is due at once."""
    if clocked_time is not None:
        return max(clocked_time, start or clocked_time, changed)
    return grid.next(changed)


def _when(model: Any) -> tuple[Any, ...]:
    schedule = model.scheduler
    fields = [field.attname for field in schedule._meta.concrete_fields if not field.primary_key]
    return (
        type(schedule).__name__,
        *(str(getattr(schedule, name)) for name in fields),
        *(getattr(model, name) for name in _WHEN),
    )


def as_utc(moment: datetime | None) -> datetime | None:
    """A time as Django has it: without a zone, where ``USE_TZ`` is off."""
    if moment is None:
        return None
    aware = timezone.make_aware(moment) if timezone.is_naive(moment) else moment
    return aware.astimezone(UTC)


def as_django(moment: datetime) -> datetime:
    """A time as Django wants it."""
    return moment if settings.USE_TZ else timezone.make_naive(moment)
