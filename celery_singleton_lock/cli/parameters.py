"""What people type for times, spans, schedules and arguments, read or refused with an example."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final

import click

_SPAN: Final = re.compile(r"(?:(\d+(?:\.\d+)?)\s*([smhdw]))\s*")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


class Span(click.ParamType[Any]):
    """``30`` (seconds), ``30s``, ``5m``, ``1h 30m``, ``2d``, ``1w``."""

    name = "span"

    def convert(self, value: Any, param: Any, ctx: Any) -> timedelta:
        if isinstance(value, timedelta):
            return value
        span = read_span(value)
        if span is None or span <= timedelta(0):
            self.fail(f"{value!r} is no time: give seconds, or something like 90s, 5m, 1h30m, 2d")
        return span


class Seconds(click.FloatRange):
    """How long to wait: a day at most, and a number, which Click would not insist on."""

    def __init__(self, at_least: float = 0) -> None:
        super().__init__(at_least, 86_400)

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is no number of seconds")
        return seconds


class Moment(click.ParamType[Any]):
    """ISO 8601, ``now``, so long ago, or in so long: ``2027-01-31T06:00``, ``2h ago``, ``in 2h``."""

    name = "moment"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, datetime | timedelta):
            return value
        text = value.strip()
        if text == "now":
            return timedelta(0)
        if text.startswith("in ") and (span := read_span(text.removeprefix("in "))) is not None:
            return -span
        # "2h" alone is meant so where people look back, and refused where they plan.
        if text[-1:].isalpha() and (span := read_span(text.removesuffix(" ago"))) is not None:
            return span
        try:
            return datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f"{value!r} is no time: give 2027-01-31, 2027-01-31T06:00, 2027-01-31T06:00+01:00, "
                "now, '2h ago' or 'in 2h'"
            )


class Json(click.ParamType[Any]):
    """JSON of one kind: an array or an object."""

    def __init__(self, kind: type, example: str) -> None:
        self.name = "json"
        self._kind = kind
        self._example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if isinstance(value, self._kind):
            return value
        try:
            read = json.loads(value)
        except (ValueError, RecursionError) as error:
            self.fail(f"{value[:80]!r} is no JSON ({error}): give something like {self._example}")
        if not isinstance(read, self._kind):
            self.fail(f"{value[:80]!r} has the wrong shape: give something like {self._example}")
        return read


class Crontab(click.ParamType[Any]):
    """Five fields, as in crontab(5); in the time zone of the app."""

    name = "crontab"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from celery.schedules import ParseException, crontab

        if not isinstance(value, str):
            return value
        fields = value.split()
        if len(fields) != 5:
            self.fail(
                f"{value!r} has {len(fields)} fields, not 5: minute, hour, day of month, month, day of "
                "week. '0 6 * * 1-5' is at six on working days"
            )
        minute, hour, day, month, weekday = fields
        try:
            return crontab(minute, hour, day_of_month=day, month_of_year=month, day_of_week=weekday)
        except (ParseException, ValueError) as error:
            self.fail(f"{value!r} cannot be read: {error}. '0 6 * * 1-5' is at six on working days")


class Solar(click.ParamType[Any]):
    """An event of the sun, and where it is seen: latitude and longitude in degrees."""

    name = "solar"
    _EXAMPLE: Final = "'sunset 48.2 16.4' is at sunset in Vienna"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from celery.exceptions import ImproperlyConfigured
        from celery.schedules import solar

        if not isinstance(value, str):
            return value
        try:
            event, *place = value.split()
            latitude, longitude = map(float, place)
            if not (math.isfinite(latitude) and math.isfinite(longitude)):
                raise ValueError(f"no place is at {latitude} {longitude}")
        except ValueError:
            self.fail(f"{value!r} is no event and place: {self._EXAMPLE}")
        try:
            return solar(event, latitude, longitude)
        except ValueError as error:
            self.fail(f"{value!r} cannot be read: {error}. {self._EXAMPLE}")
        except ImproperlyConfigured:
            self.fail("times of the sun need ephem: pip install 'celery[solar]', here and for beat")


def read_span(text: str) -> timedelta | None:
    """None: it is none."""
    text = text.strip().lower()
    try:
        seconds = float(text)
    except ValueError:
        parts = _SPAN.findall(text)
        if not parts or _SPAN.sub("", text):
            return None
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
    try:
        return timedelta(seconds=seconds)
    except (OverflowError, ValueError):
        return None


def placed(given: datetime | timedelta, now: datetime, zone: tzinfo) -> datetime:
    """A `Moment` in UTC: one without a time zone is of the app's, and a span is counted from `now`."""
    try:
        if isinstance(given, timedelta):
            return now - given
        return (given if given.tzinfo else given.replace(tzinfo=zone)).astimezone(UTC)
    except OverflowError:
        raise click.UsageError(f"{given} is further away than calendars reach") from None


def moment_of(context: click.Context, given: datetime | timedelta | None) -> datetime | None:
    """A `Moment` that looks back, by this host's clock."""
    return None if given is None else placed(given, datetime.now(UTC), context.obj.app.timezone)
