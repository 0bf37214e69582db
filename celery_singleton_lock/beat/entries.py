"""What beat works on: entries with what is known of them, and the slots of theirs that are due."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Protocol

from celery_singleton_lock.core.errors import BrokerUnavailable as BrokerUnavailable

from .plan import CatchUpRule
from .slots import Grid


@dataclass(slots=True, eq=False)
class PlannedEntry:
    """An entry of the schedule, or a job of its own, with what this replica knows of it."""

    name: str
    key: str
    grid: Grid
    rule: CatchUpRule
    jitter: timedelta = timedelta(0)
    mark: str = ""
    """Tells definitions of the entry apart, see `SingletonEntry.mark`; empty where the book has it."""
    begins: datetime | None = None
    """No slot up to then is its own: it was made, changed or resumed at that time."""
    last_page: str | None = None
    """The page to remove from the book when no slot is left; None: it stays."""
    is_job: bool = False
    fills_gaps: bool = False
    """A backfill."""
    is_paused: bool = False
    is_aside: bool = False
    """A newer replica has another definition of it, and acts."""
    first_seen: datetime | None = None
    """When this replica met it, and nobody knew how far it was."""
    position: datetime | None = None
    next_slot: datetime | None = None
    ticket: int = 0
    """Which place in the agenda is its own; any other is an old one."""

    @property
    def is_active(self) -> bool:
        return not (self.is_paused or self.is_aside)

    def begin_after(self, moment: datetime) -> None:
        """Leave out the slots up to `moment` that were not published yet."""
        self.begins = max(self.begins or moment, moment)
        if self.position is not None:
            self.position = max(self.position, moment)


@dataclass(frozen=True, slots=True)
class Due:
    """One slot of one entry, to be published."""

    entry: str
    slot: datetime
    in_turn: bool = False
    """It fills a gap: while its job is executed it waits, and is not skipped."""
    again: bool = False
    """It was published before, and nobody has started its run."""
    expires: datetime | None = None
    """Where that was to be reckoned from when it was published first."""


class NotTaken(BrokerUnavailable):
    """The broker is there, and took all but these: their queue is full, and refuses what is new."""

    def __init__(self, dues: Collection[Due]) -> None:
        super().__init__(f"not taken by their queue: {', '.join(sorted({due.entry for due in dues}))}")
        self.dues = frozenset(dues)


class Publishes(Protocol):
    """The way to the broker. All raise `BrokerUnavailable`."""

    def prepare(self) -> None:
        """Connect, if that is still to be done: so that it does not use up the time of a lease."""

    def publish(self, dues: Sequence[Due]) -> None:
        """Publish all, and have them confirmed; or all but those that `NotTaken` tells of."""

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Publish messages as they were noted in the records of their runs, and have them confirmed."""

    def publish_anew(self, dues: Sequence[Due]) -> None:
        """`publish`, of what was published before."""


OnMissed = Callable[[Due], None]
