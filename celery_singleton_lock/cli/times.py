"""Times as people say them: how long, how long ago, in how long."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_UNITS: Final = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def spoken(span: timedelta | float) -> str:
    """The two largest units of a time: ``3d 4h``, ``5m 3s``, ``0.4s``."""
    seconds = abs(span.total_seconds() if isinstance(span, timedelta) else span)
    if seconds < 9.95:
        # Of seconds the tenth is worth telling, unless there is none.
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    left = round(seconds)
    parts: list[str] = []
    for size, unit in _UNITS:
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count}{unit}")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part[:-1] != "0")


def ago(moment: datetime | None, now: datetime) -> str:
    """How far `moment` is from `now`, either way; a dash where there is none."""
    if moment is None:
        return "-"
    span = now - moment
    return f"in {spoken(span)}" if span < timedelta(0) else f"{spoken(span)} ago"


def iso(moment: datetime | None) -> str | None:
    """For machines: UTC, with microseconds only where there are some."""
    return None if moment is None else moment.isoformat()


def clock(moment: datetime | None) -> str:
    """For people: UTC, to the second."""
    return "-" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%SZ")
