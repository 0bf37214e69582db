"""Slots against a brute-force oracle, in time zones whose clocks are put forward and back."""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab, schedstate, schedule, solar
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_singleton_lock.beat.slots import EPOCH, grid_of, next_slot

MINUTE = timedelta(minutes=1)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/Sao_Paulo",
    "Australia/Lord_Howe",  # half an hour
    "Asia/Kolkata",
    "America/Havana",  # at midnight
    "Africa/Casablanca",
    "Pacific/Apia",
]


LEAP_DAYS = {"hour": 0, "minute": 0, "day_of_month": 29, "month_of_year": 2}
AT_2_30 = {"hour": 2, "minute": 30}


def app_in(zone: str) -> Celery:
    app = Celery(set_as_current=False)
    app.conf.timezone = zone
    return app


def crontab_in(zone: str, **fields: Any) -> Any:
    return crontab(app=app_in(zone), **fields)


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc, arg-type]


def subsets(low: int, high: int) -> st.SearchStrategy[set[int] | str]:
    return st.just("*") | st.sets(st.integers(low, high), min_size=1, max_size=4)


def has_days(days: Any, months: Any) -> bool:
    """Celery refuses days that never come, such as the 30th of February."""
    if "*" in (days, months):
        return True
    return any(min(days) <= monthrange(2028, month)[1] for month in months)


fields = st.fixed_dictionaries(
    {
        "minute": subsets(0, 59),
        "hour": subsets(0, 23),
        "day_of_week": st.just("*") | subsets(0, 6),
        "day_of_month": st.just("*") | subsets(1, 31),
        "month_of_year": st.just("*") | subsets(1, 12),
    }
).filter(lambda cron: has_days(cron["day_of_month"], cron["month_of_year"]))
# Near the changes of the clocks, more often than not.
moments = st.builds(
    lambda day, seconds: utc(2026, 1, 1) + timedelta(days=day, seconds=seconds),
    st.sampled_from([*range(60, 100), *range(265, 315), *range(0, 365, 13)]),
    st.integers(0, 86_399),
)


def slots_by_brute_force(cron: Any, after: datetime, until: datetime) -> list[datetime]:
    """Look at every minute of the wall clock, and at every minute of time."""
    zone = cron.tz

    def matches(wall: datetime) -> bool:
        return (
            wall.minute in cron.minute
            and wall.hour in cron.hour
            and wall.day in cron.day_of_month
            and wall.month in cron.month_of_year
            and wall.isoweekday() % 7 in cron.day_of_week
        )

    found = set()
    moment = after.replace(second=0, microsecond=0)
    while moment <= until:
        local = moment.astimezone(zone)
        if matches(local) and (local.fold == 0 or len(cron.hour) == 24):
            found.add(moment)
        # A time of the wall that was jumped over comes later by as much as was jumped.
        for before in (timedelta(minutes=30), timedelta(hours=1), timedelta(days=1)):
            skipped = local.replace(tzinfo=None, fold=0) - before
            again = skipped.replace(tzinfo=zone).astimezone(UTC)
            exists = again.astimezone(zone).replace(tzinfo=None, fold=0) == skipped
            if not exists and again == moment and matches(skipped):
                found.add(moment)
        moment += MINUTE
    return sorted(slot for slot in found if after < slot <= until)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(ZONES), fields, moments)
def test_crontab_slots_equal_the_oracles(zone: str, cron: dict[str, Any], after: datetime) -> None:
    grid, until = grid_of(given := crontab_in(zone, **cron)), after + timedelta(hours=30)
    found = []
    slot = grid.next(after)
    while slot is not None and slot <= until:
        found.append(slot)
        slot = grid.next(slot)
    assert found == slots_by_brute_force(given, after, until)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(ZONES), fields, moments, st.integers(0, 3600))
def test_whoever_asks_and_whenever_finds_the_same_slot(
    zone: str, cron: dict[str, Any], after: datetime, later: int
) -> None:
    given = crontab_in(zone, **cron)
    slot = next_slot(given, after)
    if slot is not None and after + timedelta(seconds=later) < slot:
        assert next_slot(given, after + timedelta(seconds=later)) == slot
        assert next_slot(given, slot - timedelta(microseconds=1)) == slot


@given(st.integers(1, 10**12), st.integers(0, 10**16))
def test_intervals_are_anchored_to_the_epoch(every_us: int, after_us: int) -> None:
    every, after = timedelta(microseconds=every_us), EPOCH + timedelta(microseconds=after_us)
    slot = next_slot(schedule(every), after)
    assert slot is not None
    assert after < slot <= after + every
    assert (slot - EPOCH) % every == timedelta(0)


@pytest.mark.parametrize(
    ("zone", "cron", "after", "expected"),
    [
        # Put forward at 01:00 UTC on 29 March: 02:30 does not exist.
        ("Europe/Berlin", AT_2_30, utc(2026, 3, 28, 12), utc(2026, 3, 29, 1, 30)),
        ("Europe/Berlin", AT_2_30, utc(2026, 3, 29, 1, 30), utc(2026, 3, 30, 0, 30)),
        # Put back at 01:00 UTC on 25 October: 02:30 exists twice, and is a slot once.
        ("Europe/Berlin", AT_2_30, utc(2026, 10, 24, 12), utc(2026, 10, 25, 0, 30)),
        ("Europe/Berlin", AT_2_30, utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)),
        # But every hour is every hour.
        ("Europe/Berlin", {"minute": 30}, utc(2026, 10, 25, 0, 30), utc(2026, 10, 25, 1, 30)),
        ("UTC", LEAP_DAYS, utc(2026, 1, 1), utc(2028, 2, 29)),
        ("Asia/Kolkata", {"hour": 0, "minute": 0}, utc(2026, 1, 1), utc(2026, 1, 1, 18, 30)),
    ],
)  # fmt: skip
def test_crontab_where_clocks_are_changed(
    zone: str, cron: dict[str, Any], after: datetime, expected: datetime
) -> None:
    assert next_slot(crontab_in(zone, **cron), after) == expected


def test_relative_interval_is_whole_on_the_wall_clock() -> None:
    daily = schedule(timedelta(days=1), relative=True, app=app_in("Europe/Berlin"))
    assert next_slot(daily, utc(2026, 3, 28, 12)) == utc(2026, 3, 28, 23)
    assert next_slot(daily, utc(2026, 3, 28, 23)) == utc(2026, 3, 29, 22)
    hourly = schedule(timedelta(hours=1), relative=True, app=app_in("Asia/Kolkata"))
    assert next_slot(hourly, utc(2026, 1, 1, 0, 31)) == utc(2026, 1, 1, 1, 30)


def test_whole_intervals_on_the_wall_are_counted_from_the_first_day_of_1970() -> None:
    slot = next_slot(schedule(timedelta(days=7), relative=True), utc(2026, 1, 1))
    assert slot == utc(2026, 1, 8)
    assert slot.tzinfo is UTC


@pytest.mark.parametrize("relative", [False, True])
def test_interval_beyond_the_end_of_calendars_has_no_slot(relative: bool) -> None:
    assert next_slot(schedule(timedelta.max, relative=relative), utc(2026, 1, 1)) is None


@pytest.mark.parametrize("relative", [False, True])
def test_interval_of_nothing_has_no_slot(relative: bool) -> None:
    assert next_slot(schedule(timedelta(0), relative=relative), utc(2026, 1, 1)) is None


class OnBusinessDays(crontab):  # type: ignore[misc]
    """As people write them: an `is_due` of their own on top of a stock schedule."""

    def is_due(self, last_run_at: datetime) -> Any:
        is_due, wait = super().is_due(last_run_at)
        return schedstate(is_due and self.now().isoweekday() < 6, wait or 60.0)


class EverySeventhSecond(schedule):  # type: ignore[misc]
    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        past = last_run_at.second % 7
        due_at = last_run_at.replace(microsecond=0) + timedelta(seconds=7 - past)
        remaining: timedelta = due_at - self.now()
        return remaining


@pytest.mark.parametrize(
    ("custom", "after", "expected"),
    [
        (
            lambda: OnBusinessDays(hour=9, minute=0, app=app_in("UTC")),
            utc(2026, 11, 20, 10),  # a Friday
            utc(2026, 11, 23, 9),
        ),
        (
            lambda: EverySeventhSecond(1, app=app_in("UTC")),
            utc(2026, 1, 1, 0, 0, 8),
            utc(2026, 1, 1, 0, 0, 14),
        ),
    ],
)
def test_custom_schedule_is_asked_by_its_own_interface(
    custom: Callable[[], Any], after: datetime, expected: datetime
) -> None:
    assert next_slot(custom(), after) == expected


def test_solar_slots_are_whole_seconds_a_day_apart() -> None:
    sunrise = solar("sunrise", 52.5, 13.4, app=app_in("Europe/Berlin"))
    slot = next_slot(sunrise, utc(2026, 6, 1))
    for _ in range(30):
        assert slot is not None
        assert slot.microsecond == 0
        following = next_slot(sunrise, slot)
        assert following is not None
        assert timedelta(hours=23, minutes=50) < following - slot < timedelta(hours=24, minutes=10)
        slot = following
