"""Which slots of an entry are to be published now, and which were missed. Pure."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Literal

from .slots import EPOCH, Grid

CatchUp = Literal["none", "latest", "all"]

RUN_IDS: Final = uuid.UUID("6d1c9a52-6f0d-5f6e-9b1d-0c5c2a6f1e11")
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


def plan(grid: Grid, position: datetime, now: datetime, rule: CatchUpRule) -> Plan:
    """The slots after `position`, up to `now`: oldest first."""
    late: list[datetime] = []
    old: list[datetime] = []
    slot = grid.next(max(position, now - max(rule.window, rule.late_line)))
    while slot is not None and slot <= now:
        (late if slot > now - rule.late_line else old).append(slot)
        slot = grid.next(slot)
    caught_up = {"none": 0, "latest": 0 if late else 1, "all": len(old)}[rule.policy]
    split = len(old) - caught_up
    publish = old[split:] + late
    last = (old + late)[-1:] or [position]
    return Plan(publish, old[:split], last[0])


def run_id(app_name: str, entry: str, slot: datetime) -> str:
    """The id of the run of `entry` at `slot`: the same, whoever computes it."""
    return str(uuid.uuid5(RUN_IDS, f"{app_name}\0{entry}\0{as_position(slot)}"))


def as_position(slot: datetime) -> int:
    return (slot - EPOCH) // _MICROSECOND


def as_slot(position: int) -> datetime:
    return EPOCH + timedelta(microseconds=position)
