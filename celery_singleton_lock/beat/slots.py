"""Slots: the nominal times at which an entry is due, computed alike by every replica.

Pure: nothing here looks at a clock. Whoever asks, and whenever, the slots of a schedule are the same,
so a slot can name a run.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import lru_cache
from typing import Any, Final

from celery.schedules import BaseSchedule, crontab, schedule

from .once import once

Schedule = Any  # Celery ships no types.

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_DAY: Final = timedelta(days=1)
_MICROSECOND: Final = timedelta(microseconds=1)
_SECOND: Final = timedelta(seconds=1)
_YEARS_SEARCHED: Final = 41  # A 29th of February on a given weekday is at most 40 years away.
_CHECKS: Final = 10_000


class Grid(ABC):
    """The slots of one schedule. Make it once, ask it often."""

    @abstractmethod
    def next(self, after: datetime) -> datetime | None:
        """The first slot later than `after`, in UTC; None if there is none."""


def next_slot(schedule: Schedule, after: datetime) -> datetime | None:
    """The first slot of `schedule` later than `after`, in UTC; None if there is none.

    `after` must be aware.
    """
    return grid_of(schedule).next(after)


def grid_of(given: Schedule) -> Grid:
    """How to find the slots of a Celery schedule; of a kind of its own by asking it."""
    if isinstance(given, crontab) and _decides_like(given, crontab):
        return CrontabGrid(given)
    if isinstance(given, schedule) and _decides_like(given, schedule) and given.run_every is not None:
        return (
            WallClockGrid(given.run_every, given.tz)
            if given.relative
            else IntervalGrid(given.run_every)
        )
    if isinstance(given, once):
        return OnceGrid(given.at)
    return AskedGrid(given)


def _decides_like(given: Schedule, stock: type) -> bool:
    names = ("is_due", "remaining_estimate", "remaining_delta")
    return all(getattr(type(given), name, None) is getattr(stock, name, None) for name in names)


class IntervalGrid(Grid):
    """Anchored to the epoch, not to a start: replicas that started at different times agree."""

    def __init__(self, every: timedelta) -> None:
        self._every = every

    def next(self, after: datetime) -> datetime | None:
        if self._every <= timedelta(0):
            return None
        try:
            return EPOCH + ((after - EPOCH) // self._every + 1) * self._every
        except OverflowError:  # after the end of all calendars
            return None


class WallClockGrid(Grid):
    """Celery's ``relative``: whole intervals on the wall clock, so that a daily one is at midnight."""

    def __init__(self, every: timedelta, zone: tzinfo) -> None:
        self._every = every
        self._zone = zone

    def next(self, after: datetime) -> datetime | None:
        if self._every <= timedelta(0):
            return None
        start = datetime(1970, 1, 1)  # noqa: DTZ001 - a wall clock has no zone
        # Where the clocks are put back, the wall repeats itself: begin before that.
        wall = after.astimezone(self._zone).replace(tzinfo=None) - _DAY
        step = (wall - start) // self._every
        while True:
            step += 1
            try:
                slot = (start + step * self._every).replace(tzinfo=self._zone).astimezone(UTC)
            except OverflowError:
                return None
            if slot > after:
                return slot


class OnceGrid(Grid):
    """One slot."""

    def __init__(self, slot: datetime) -> None:
        self._slot = slot.astimezone(UTC)

    def next(self, after: datetime) -> datetime | None:
        return self._slot if self._slot > after else None


class BoundedGrid(Grid):
    """The slots of another grid from `start` to `end`, both included; None: without that bound."""

    def __init__(self, grid: Grid, start: datetime | None, end: datetime | None) -> None:
        self._grid = grid
        self._before = start.astimezone(UTC) - _MICROSECOND if start else None
        self._end = end

    def next(self, after: datetime) -> datetime | None:
        slot = self._grid.next(max(after, self._before) if self._before else after)
        return slot if slot is not None and (self._end is None or slot <= self._end) else None


class CrontabGrid(Grid):
    """All five fields must match, on the wall clock of the schedule's time zone.

    Where the clocks are put forward, a time that does not exist comes as much later as they were put
    forward. Where they are put back, a time that exists twice is a slot once, the first time; but a
    crontab of every hour goes on every hour.
    """

    def __init__(self, given: Schedule) -> None:
        self._zone: tzinfo = given.tz
        self._months = _shared(frozenset(given.month_of_year))
        self._days = _shared(frozenset(given.day_of_month))
        self._weekdays = _shared(frozenset(given.day_of_week))
        self._times = _minutes_of_day(frozenset(given.hour), frozenset(given.minute))
        self._every_hour = len(given.hour) == 24

    def next(self, after: datetime) -> datetime | None:
        local = after.astimezone(self._zone)
        for day in self._dates(local.date()):
            slot = self._first_of(day, after)
            if slot is not None:
                return slot
        return None

    def _dates(self, first: date) -> Iterator[date]:
        day = first
        while day.year <= min(first.year + _YEARS_SEARCHED, 9998):
            if day.month not in self._months:
                day = (day.replace(day=1) + timedelta(days=32)).replace(day=1)
                continue
            if day.day in self._days and day.isoweekday() % 7 in self._weekdays:
                yield day
            day += _DAY

    def _first_of(self, day: date, after: datetime) -> datetime | None:
        midnight = datetime.combine(day, time(), self._zone)
        begins = midnight.astimezone(UTC)
        if midnight.utcoffset() != (midnight + _DAY).utcoffset():
            return min(
                (slot for slot in self._slots_of_odd_day(midnight) if slot > after), default=None
            )
        passed = (after - begins) // timedelta(minutes=1) + 1
        at = bisect_left(self._times, passed)
        return begins + timedelta(minutes=self._times[at]) if at < len(self._times) else None

    def _slots_of_odd_day(self, midnight: datetime) -> Iterator[datetime]:
        for minutes in self._times:
            wall = midnight + timedelta(minutes=minutes)
            first, second = wall.astimezone(UTC), wall.replace(fold=1).astimezone(UTC)
            yield first
            # In a gap, the second reading is the earlier one, and names another time of the wall.
            if self._every_hour and second > first:
                yield second


# There may be many thousands of crontabs, most of them alike.


@lru_cache(maxsize=1024)
def _minutes_of_day(hours: frozenset[int], minutes: frozenset[int]) -> tuple[int, ...]:
    return tuple(hour * 60 + minute for hour in sorted(hours) for minute in sorted(minutes))


@lru_cache(maxsize=1024)
def _shared(values: frozenset[int]) -> frozenset[int]:
    return values


class AskedGrid(Grid):
    """For solar and custom schedules: asks `is_due` as though it were later and later.

    Slots are whole seconds, rounded up, so that a slot found from the one before is never that one.
    """

    def __init__(self, given: BaseSchedule) -> None:
        self._schedule = copy.copy(given)

    def next(self, after: datetime) -> datetime | None:
        moment = after
        for _ in range(_CHECKS):
            is_due, wait = self._ask(after, moment)
            if is_due and moment > after:
                return moment
            moment = _whole_second(max(moment + timedelta(seconds=wait), moment + _MICROSECOND))
        return None

    def _ask(self, last_run_at: datetime, now: datetime) -> tuple[bool, float]:
        self._schedule.nowfun = lambda: now
        is_due, wait = self._schedule.is_due(last_run_at)
        return bool(is_due), float(wait)


def _whole_second(moment: datetime) -> datetime:
    whole = moment.replace(microsecond=0)
    return whole if whole == moment else whole + _SECOND
