"""What beat works on: entries with what is known of them, and the slots of theirs that are due."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from celery_singleton_lock.core.errors import BrokerUnavailable as BrokerUnavailable

from .plan import CatchUpRule
from .slots import Grid


@dataclass(slots=True, eq=False)
class PlannedEntry:
    """An entry of the schedule, with what this replica knows of it."""

    name: str
    key: str
    grid: Grid
    rule: CatchUpRule
    position: datetime | None = None
    next_slot: datetime | None = None
    ticket: int = 0
    """Which place in the heap is its own; any other is an old one."""


@dataclass(frozen=True, slots=True)
class Due:
    """One slot of one entry, to be published."""

    entry: str
    slot: datetime


class Publishes(Protocol):
    """The way to the broker. Both raise `BrokerUnavailable`."""

    def prepare(self) -> None:
        """Connect, if that is still to be done: so that it does not use up the time of a lease."""

    def publish(self, dues: Sequence[Due]) -> None:
        """Publish all, and have them confirmed."""


OnMissed = Callable[[Due], None]
