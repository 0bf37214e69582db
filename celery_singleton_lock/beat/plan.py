"""Which slots of an entry are to be published now, and which were missed. Pure."""

from __future__ import annotations

import uuid
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final, Literal
from urllib.parse import quote

from celery_singleton_lock.core.models import FINISHED

from .slots import EPOCH, Grid

CatchUp = Literal["none", "latest", "all"]

RUN_IDS: Final = uuid.UUID("6d1c9a52-6f0d-5f6e-9b1d-0c5c2a6f1e11")
MOST_TOLD_BEYOND_THE_WINDOW: Final = 1000
"""A year of seconds is more than anybody wants to be told of."""
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class CatchUpRule:
    """What to do with slots that nobody published in time.

    Slots younger than `late_line` are late, not missed: they are always published. Older ones are
    published as `policy` says, as far back as `window` goes.
    """

    policy: CatchUp
    window: timedelta
    late_line: timedelta


@dataclass(frozen=True, slots=True)
class Plan:
    publish: list[datetime]
    missed: list[datetime]
    position: datetime
    """How far the entry is done once all of that is done."""
    next_slot: datetime | None
    """The first slot that is not due yet, or was too many."""
    caught_up: int = 0
    """How many of those to publish, the first ones, are older than late."""


def plan(
    grid: Grid,
    position: datetime,
    now: datetime,
    rule: CatchUpRule,
    is_due: Callable[[datetime], bool] | None = None,
    at_most: int = FINISHED,
) -> Plan:
    """The slots after `position`, up to `now`: oldest first, and no more than `at_most` to publish.

    `is_due` may put off the last ones.
    """
    start = max(position, now - max(rule.window, rule.late_line))
    too_old: list[datetime] = []
    if start > position:
        too_old, _ = slots_between(grid, position, start, MOST_TOLD_BEYOND_THE_WINDOW)
    # Where all are published, no more need to be found than can be published at once.
    due, next_slot = slots_between(grid, start, now, at_most if rule.policy == "all" else FINISHED)
    while due and is_due is not None and not is_due(due[-1]):
        next_slot = due.pop()
    first_late = bisect_right(due, now - rule.late_line)
    old, late = due[:first_late], due[first_late:]
    most = {"none": 0, "latest": 0 if late else 1, "all": len(old)}[rule.policy]
    caught_up = min(most, len(old))
    split = len(old) - caught_up
    publish, missed = old[split:] + late, too_old + old[:split]
    if len(publish) > at_most:
        return Plan(publish[:at_most], missed, publish[at_most - 1], publish[at_most], caught_up)
    # Also where there is no slot left: an entry must not stay behind the window for ever.
    return Plan(publish, missed, due[-1] if due else start, next_slot, caught_up)


def slots_between(
    grid: Grid, after: datetime, until: datetime, at_most: int = FINISHED
) -> tuple[list[datetime], datetime | None]:
    """The slots after `after`, up to `until`; and the one that follows them."""
    slots: list[datetime] = []
    slot = grid.next(after)
    while slot is not None and slot <= until and len(slots) < at_most:
        slots.append(slot)
        slot = grid.next(slot)
    return slots, slot


def delay_of(entry_key: str, grid: Grid, slot: datetime, jitter: timedelta) -> timedelta:
    """By how much the publishing of `slot` is put off: the same for every replica, less than `jitter`,
    and never so long that the next slot could come first."""
    if not jitter:
        return jitter
    following = grid.next(slot)
    most = min(jitter, following - slot) if following else jitter
    digest = blake2b(f"{entry_key}\0{as_position(slot)}".encode(), digest_size=8).digest()
    return most * (int.from_bytes(digest) / 2**64)


def run_id(app_name: str, entry: str, slot: datetime) -> str:
    """The id of the run of `entry` at `slot`: the same, whoever computes it."""
    return str(uuid.uuid5(RUN_IDS, f"{app_name}\0{entry}\0{as_position(slot)}"))


def entry_key(app_name: str, entry: str) -> str:
    """The key of an entry's record. Two apps that share a store, and name an entry alike, would else
    share its position: only one of them would publish."""
    return f"beat:{quote(app_name, safe='')}:{entry}"


def job_key(app_name: str, entry: str, kind: str, job: str) -> str:
    """The key of the record of a trigger or backfill of an entry."""
    return f"{entry_key(app_name, entry)}:{kind}:{job}"


def as_position(slot: datetime) -> int:
    return (slot - EPOCH) // _MICROSECOND


def as_slot(position: int) -> datetime:
    return EPOCH + timedelta(microseconds=position)
