"""Runs of the past, for the pages: from the ledger, else what Flower saw of them itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

STATUSES: Final = (
    "waiting", "running", "succeeded", "failed", "dead", "retrying", "skipped", "lost", "missed",
    "revoked",
)  # fmt: skip


LEASE_LOST: Final = "an execution lost its lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeen:
    """`status`: one of `STATUSES`. None: not known, or not yet."""

    id: str
    task: str
    entry: str | None
    slot: datetime | None
    status: str
    worker: str | None
    attempt: int
    started: datetime | None
    """Its last attempt, as the next one."""
    ended: datetime | None
    seen: datetime
    """The last that was heard of it."""
    error: str | None = None
    reason: str | None = None
    """Why it was skipped or missed, or that a lease was lost on the way."""

    lag_s: float | None = None
    """From its slot until it first began."""

    @property
    def took_s(self) -> float | None:
        if self.started is None or self.ended is None:
            return None
        return max(0.0, (self.ended - self.started).total_seconds())

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "task": self.task,
            "entry": self.entry,
            "slot": stamp(self.slot),
            "status": self.status,
            "worker": self.worker,
            "attempt": self.attempt,
            "started": stamp(self.started),
            "ended": stamp(self.ended),
            "seen": stamp(self.seen),
            "lag": self.lag_s,
            "took": self.took_s,
            "error": self.error,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which runs, newest first; empty: all. `search` is looked for in id, task, entry and worker.
    `status` "lost": also those that a successor has taken over and ended since."""

    search: str = ""
    entry: str = ""
    status: str = ""
    since: datetime | None = None
    offset: int = 0
    limit: int = 25


@dataclass(frozen=True, slots=True)
class Found:
    runs: Sequence[RunSeen]
    count: int
    """How many there are, not only those of this part."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What happened from `at` on, until the next one."""

    at: datetime
    started: int
    skipped: Mapping[str, int]
    """By reason."""


class History(Protocol):
    """All but `about` raise `NoAnswer`."""

    def about(self) -> str:
        """Where it is from, and since when, in words; empty: from the ledger, which has all."""

    async def latest(self, entries: Sequence[str], each: int) -> Mapping[str, Sequence[RunSeen]]:
        """The last runs of these entries, oldest first."""

    async def find(self, query: Query) -> Found: ...

    async def contention(self, since: datetime, until: datetime, buckets: int) -> Sequence[Bucket]: ...


def stamp(moment: datetime | None) -> float | None:
    """As scripts have it: seconds since the epoch."""
    return None if moment is None else moment.timestamp()
