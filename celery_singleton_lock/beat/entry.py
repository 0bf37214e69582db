"""An entry as Celery knows it, with what we add to it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime, timedelta
from difflib import get_close_matches
from hashlib import blake2b
from inspect import signature
from typing import Any, Final

from celery.beat import ScheduleEntry

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.settings.values import one_of, read_duration

from . import definitions
from .book import Defined
from .entries import PlannedEntry
from .moments import checked
from .plan import CatchUp, CatchUpRule, entry_key
from .slots import BoundedGrid, Grid, grid_of

LATE_AT_LEAST: Final = timedelta(seconds=15)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


class SingletonEntry(ScheduleEntry):  # type: ignore[misc]
    """A line of ``beat_schedule``. Besides what Celery knows it may say

    - how it is caught up: `catch_up`, `catch_up_window`;
    - by how much its runs are spread: `jitter`, in seconds;
    - from when to when it is due: `start`, `end`.
    """

    def __init__(
        self,
        *args: Any,
        catch_up: CatchUp | None = None,
        catch_up_window: float | timedelta | None = None,
        jitter: float | timedelta = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        **kwargs: Any,
    ) -> None:
        _refuse_unknown(kwargs)
        super().__init__(*args, **kwargs)
        where = f"entry {self.name!r}:"
        if catch_up is not None:
            one_of("none", "latest", "all")(f"{where} catch_up", catch_up)
        self.catch_up = catch_up
        self.catch_up_window = (
            None
            if catch_up_window is None
            else read_duration(f"{where} catch_up_window", catch_up_window)
        )
        self.jitter = read_duration(f"{where} jitter", jitter) if jitter else timedelta(0)
        self.start = None if start is None else checked(f"{where} start", start)
        self.end = None if end is None else checked(f"{where} end", end)
        if start and end and start > end:
            raise ConfigurationError(f"{where} its end, {end}, is before its start, {start}: swap them")


def entry_from(defined: Defined, app: Any) -> SingletonEntry:
    """The entry that somebody has written into the book. Raises whatever its flaw leads to."""
    said = definitions.decode(defined.definition, app)
    entry = SingletonEntry(name=defined.name, app=app, **said)
    # Some schedules show their flaw only when they are asked.
    grid_for(entry).next(defined.at)
    return entry


_OURS: Final = {"catch_up", "catch_up_window", "jitter", "start", "end"}
_KNOWN: Final = {*signature(ScheduleEntry.__init__).parameters, *_OURS} - {"self"}


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    for key in given.keys() - _KNOWN:
        close = get_close_matches(key, _KNOWN, n=1)
        meant = f"did you mean {close[0]!r}?" if close else f"it may have {', '.join(sorted(_KNOWN))}"
        raise ConfigurationError(f"entry {given.get('name')!r} has an unknown {key!r}: {meant}")


def grid_for(entry: Any) -> Grid:
    """The slots of an entry of any class: its `grid`, if it has one, else those of its schedule."""
    own: Grid | None = getattr(entry, "grid", None)
    grid = own or grid_of(entry.schedule)
    start, end = getattr(entry, "start", None), getattr(entry, "end", None)
    return BoundedGrid(grid, start, end) if start or end else grid


def plan_entry(entry: Any, settings: Settings, app_name: str) -> PlannedEntry:
    """What the engine needs of an entry, of any class."""
    jitter = getattr(entry, "jitter", timedelta(0))
    return PlannedEntry(
        entry.name,
        entry_key(app_name, entry.name),
        grid_for(entry),
        CatchUpRule(
            policy=getattr(entry, "catch_up", None) or settings.catch_up,
            window=getattr(entry, "catch_up_window", None) or settings.catch_up_window,
            # What is put off is not late.
            late_line=max(3 * settings.slot_ttl, LATE_AT_LEAST) + jitter,
        ),
        jitter=jitter,
        mark=mark_of(entry),
    )


def mark_of(entry: Any) -> str:
    """Two digests, of when an entry is due and of what is published then. They tell definitions apart;
    what has no repr of its own is told apart by its kind only."""
    schedule = entry.schedule
    when = [schedule, *(getattr(schedule, name, None) for name in ("relative", "tz"))]
    when += (getattr(entry, name, None) for name in ("jitter", "start", "end"))
    what = [entry.task, entry.args, entry.kwargs, entry.options]
    return f"{_digest(when)}.{_digest(what)}"


def _digest(parts: list[object]) -> str:
    text = _ADDRESS.sub("", repr(parts))
    return blake2b(text.encode(errors="backslashreplace"), digest_size=6).hexdigest()
