"""The book of the schedule: what is said at run time, to all replicas of an app. Pure.

Pages are JSON. One that cannot be read (a newer release may have written it) is passed over.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from celery_singleton_lock.core.models import Page

from .plan import as_slot

logger = logging.getLogger(__name__)

ENTRY: Final = "entry:"
PAUSE: Final = "pause:"
CONFIG: Final = "config:"
JOB: Final = "job:"


@dataclass(frozen=True, slots=True)
class Defined:
    """An entry that was added at run time; the `definition` is for `definitions.read`."""

    name: str
    definition: Mapping[str, Any]
    at: datetime


@dataclass(frozen=True, slots=True)
class Paused:
    name: str
    is_paused: bool
    at: datetime
    by: str
    why: str


@dataclass(frozen=True, slots=True)
class Configured:
    """An entry of ``beat_schedule`` that was changed by a replica which started at `started`."""

    name: str
    mark: str
    started: int
    is_other_grid: bool
    at: datetime


@dataclass(frozen=True, slots=True)
class Job:
    """A trigger, or a backfill from `start` to `end`."""

    id: str
    kind: Literal["trigger", "backfill"]
    entry: str
    at: datetime
    start: datetime | None = None
    end: datetime | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Removed:
    page: str


Statement = Defined | Paused | Configured | Job | Removed


def read_page(page: Page) -> Statement | None:
    """What a page says; None if it cannot be understood."""
    if page.text is None:
        return Removed(page.name)
    try:
        return _read(page.name, json.loads(page.text), as_slot(page.version))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        logger.warning("schedule_page_not_understood page=%r error=%r", page.name, error)
        return None


def _read(name: str, said: Mapping[str, Any], at: datetime) -> Statement | None:
    kind, _, rest = name.partition(":")
    match f"{kind}:":
        case "entry:":
            return Defined(rest, dict(said), at)
        case "pause:":
            return Paused(rest, bool(said["paused"]), at, said.get("by", ""), said.get("why", ""))
        case "config:":
            return Configured(rest, said["mark"], int(said["started"]), bool(said["grid"]), at)
        case "job:" if said["kind"] in ("trigger", "backfill"):
            bounds = {key: datetime.fromisoformat(said[key]) for key in ("start", "end") if key in said}
            return Job(rest, said["kind"], said["entry"], at, by=said.get("by", ""), **bounds)
    raise ValueError(f"a {kind} is unknown")


def entry_page(name: str, definition: Mapping[str, Any]) -> Page:
    return _page(ENTRY + name, definition)


def pause_page(name: str, *, is_paused: bool, by: str, why: str) -> Page:
    return _page(PAUSE + name, {"paused": is_paused, "by": by, "why": why})


def config_page(name: str, mark: str, started: int, *, is_other_grid: bool) -> Page:
    return _page(CONFIG + name, {"mark": mark, "started": started, "grid": is_other_grid})


def trigger_page(id_: str, entry: str, by: str) -> Page:
    return _page(JOB + id_, {"kind": "trigger", "entry": entry, "by": by})


def backfill_page(id_: str, entry: str, start: datetime, end: datetime, by: str) -> Page:
    said = {"kind": "backfill", "entry": entry, "by": by}
    return _page(JOB + id_, said | {"start": start.isoformat(), "end": end.isoformat()})


def removal(page_name: str) -> Page:
    return Page(page_name, 0, None)


def _page(name: str, said: Mapping[str, Any]) -> Page:
    return Page(name, 0, json.dumps(said, separators=(",", ":")))
