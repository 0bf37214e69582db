"""Entries as JSON, for the book; and schedules, which are the difficult part of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final

from celery.schedules import crontab, schedule, solar

from celery_singleton_lock.core.errors import ConfigurationError

from .once import once

Schedule = Any  # Celery ships no types.

_CRONTAB_FIELDS: Final = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")


def encode(entry: Any) -> dict[str, Any]:
    """A `SingletonEntry` as `decode` takes it. Raises `ConfigurationError` for what is no JSON."""
    bounds = {"start": entry.start, "end": entry.end}
    spans = {"catch_up_window": entry.catch_up_window, "jitter": entry.jitter or None}
    said = {
        "task": entry.task,
        "schedule": encode_schedule(entry.name, entry.schedule),
        "args": list(entry.args or ()),
        "kwargs": dict(entry.kwargs or {}),
        "options": dict(entry.options or {}),
        "catch_up": entry.catch_up,
        **{name: bound.isoformat() for name, bound in bounds.items() if bound is not None},
        **{name: span.total_seconds() for name, span in spans.items() if span is not None},
    }
    try:
        as_read = json.loads(json.dumps(said))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"entry {entry.name!r} cannot be kept in the store, for it is not plain JSON: {error}. "
            "Pass ids and plain values, or put the entry into beat_schedule"
        ) from None
    return {name: value for name, value in as_read.items() if value not in (None, [], {})}


def decode(definition: Mapping[str, Any], app: Any) -> dict[str, Any]:
    """The keyword arguments of a `SingletonEntry`."""
    said = dict(definition)
    for name in ("start", "end"):
        if name in said:
            said[name] = datetime.fromisoformat(said[name])
    said["schedule"] = decode_schedule(said["schedule"], app)
    return said


def encode_schedule(name: str, given: Schedule) -> dict[str, Any]:
    """`name` is the entry's, for the error."""
    if type(given) is once:
        return {"once": given.at.isoformat()}
    if type(given) is schedule and given.run_every is not None:
        return {"every": given.run_every.total_seconds(), "relative": bool(given.relative)}
    if type(given) is crontab:
        return {"crontab": [_text(getattr(given, f"_orig_{field}")) for field in _CRONTAB_FIELDS]}
    if type(given) is solar:
        return {"solar": [given.event, given.lat, given.lon]}
    raise ConfigurationError(
        f"entry {name!r} has a schedule of the kind {type(given).__name__}, which cannot be kept in "
        "the store: use crontab, schedule, solar or once, or put the entry into beat_schedule"
    )


def decode_schedule(said: Mapping[str, Any], app: Any) -> Schedule:
    """Raises ValueError for a kind that is unknown."""
    match dict(said):
        case {"once": at}:
            return once(datetime.fromisoformat(at), app=app)
        case {"every": seconds, "relative": relative}:
            return schedule(timedelta(seconds=seconds), relative=relative, app=app)
        case {"crontab": fields}:
            return crontab(**dict(zip(_CRONTAB_FIELDS, fields, strict=True)), app=app)
        case {"solar": [event, lat, lon]}:
            return solar(event, lat, lon, app=app)
    raise ValueError(f"a schedule of the kind {', '.join(said)} is unknown")


def _text(field: object) -> str:
    """A field of a crontab as it is written; Celery also takes numbers and sets of them."""
    if isinstance(field, str | int):
        return str(field)
    return ",".join(str(each) for each in sorted(field))  # type: ignore[call-overload]
