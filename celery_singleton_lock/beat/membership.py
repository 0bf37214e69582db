"""Who else is alive, and who looks at an entry first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Final

from celery_singleton_lock.core.clock import Clock
from celery_singleton_lock.leases import LeaseStore

from .plan import as_position
from .store_clock import StoreClock

HEARTBEAT: Final = timedelta(seconds=0.9)
"""What is written in the book is known everywhere after this."""
MISSED_BEFORE_DEAD: Final = 4


class Company:
    """The living replicas of one app, by their heartbeats in the store; and the store's time, which
    comes with every heartbeat."""

    def __init__(self, store: LeaseStore, group: str, replica: str, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._group = group
        self._replica = replica
        self._next_heartbeat = 0.0
        self._time = StoreClock(clock)
        self.name = ""
        """As the others see us: with the time of our start, once the store has told it."""
        self.started = 0
        self.members: tuple[str, ...] = ()
        self.revision = 0

    @property
    def is_met(self) -> bool:
        """Whether the store was reached since the start."""
        return self._time.at is not None

    def now(self) -> datetime:
        """The store's time."""
        return self._time.now()

    def keep(self) -> None:
        """Say that we live, if it is time to."""
        if self._clock() < self._next_heartbeat:
            return
        if not self.name:
            self.started = as_position(self._store.now())
            self.name = f"{self._replica}@{self.started}"
        meeting = self._store.meet(self._group, self.name, MISSED_BEFORE_DEAD * HEARTBEAT)
        self._time.hear(meeting.now)
        self.members = meeting.members
        self.revision = meeting.revision
        self._next_heartbeat = self._clock() + HEARTBEAT.total_seconds()

    def hurry(self) -> None:
        """Let the next `keep` not wait: only a heartbeat can tell that the store is back."""
        self._next_heartbeat = 0.0

    def leave(self) -> None:
        if self.name:
            self._store.meet(self._group, self.name, timedelta(0))

    @property
    def seconds_to_heartbeat(self) -> float:
        return self._next_heartbeat - self._clock()

    def place_for(self, name: str) -> int:
        """Our rank for what is named so: 0 acts first."""
        return rank(self.name, self.members, name)

    @property
    def is_newest(self) -> bool:
        return bool(self.name) and self.name == max(self.members, key=_age, default="")

    def has_started_since(self, started: int) -> bool:
        """Whether a replica lives that started at that time or later."""
        return any(started_of(member) >= started for member in self.members)


def started_of(member: str) -> int:
    """When a member of the company started; 0 if its name does not tell."""
    _, _, started = member.rpartition("@")
    return int(started) if started.isdecimal() else 0


def _age(member: str) -> tuple[int, str]:
    return started_of(member), member


def rank(replica: str, members: Sequence[str], entry: str) -> int:
    """The place of `replica` among `members` for `entry`, by rendezvous hashing: 0 acts first.

    When a member comes or goes, only the entries it was first for change hands. A replica that is not
    among the members (its heartbeat is late) comes after them. A hint, never a right.
    """
    if replica not in members:
        return len(members)
    mine = _weight(replica, entry)
    return sum(_weight(member, entry) > mine for member in members if member != replica)


def _weight(member: str, entry: str) -> bytes:
    return blake2b(f"{member}\0{entry}".encode(), digest_size=8).digest()
