"""What is asked of a lease store, what it answers, and the lease itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from .clock import Clock, boottime
from .errors import ConfigurationError, LeaseLost, LeaseReleased

FINISHED: Final = 2**53 - 1
"""The position beyond all others: nothing is left to do. (The largest integer Lua can count to.)"""

MAX_KEY_BYTES: Final = 64 * 1024
MIN_TTL: Final = timedelta(milliseconds=10)


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """Asks for the right to one thing, for a time.

    `owner` names one holder and nobody else, for ever: two askers with one owner string are one
    holder to the store, which answers the second with the first one's lease.

    `position`: what the holder means to do. Answered `Done` when the record is that far already.
    `heir`: enters a lease that was parked for this name.
    `note`: a JSON object for people, and for whoever takes over.
    `reclaim`: the fence of the owner's own lease that ran out. Granted only if nobody was granted
    since and the store remembers it; otherwise `Held`, perhaps with nothing remaining.
    `waiting`: the asker will wait; a store that can wakes it through `LeaseStore.watch`.
    """

    key: str
    owner: str
    ttl: timedelta
    position: int | None = None
    heir: str | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    reclaim: int | None = None
    waiting: bool = False

    def __post_init__(self) -> None:
        check_name("key", self.key, MAX_KEY_BYTES)
        check_name("owner", self.owner)
        if self.heir is not None:
            check_name("heir", self.heir)
        if self.ttl < MIN_TTL:
            raise ConfigurationError(
                f"ttl {self.ttl} of lease {self.key!r} is below {MIN_TTL}: it would run out on its way"
            )
        check_position(self.position)


def check_name(what: str, name: str, most_bytes: int = 512) -> None:
    """Refuse a text that not every store can hold; `what` names it in the error."""
    if not name:
        raise ConfigurationError(f"a lease needs a {what} that is not empty")
    if "\0" in name:
        raise ConfigurationError(f"{what} {name[:80]!r} contains a NUL, which databases refuse")
    try:
        size = len(name) if name.isascii() else len(name.encode())
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} {name[:80]!r} is no valid Unicode text") from None
    if size > most_bytes:
        raise ConfigurationError(
            f"{what} {name[:80]!r}... has {size} bytes, more than {most_bytes}: use a digest of it"
        )


def check_position(position: int | None) -> None:
    """Refuse a position that not every store can count to."""
    if position is not None and not 0 <= position <= FINISHED:
        raise ConfigurationError(f"position {position} is not between 0 and FINISHED ({FINISHED})")


class Lease:
    """A granted right, with a deadline on the holder's own clock.

    `fence` grows with every grant of the key: write it beside what you change, and refuse writes with
    a smaller one. It can grow while you hold the lease, when a lease that ran out was acquired anew.
    """

    __slots__ = ("__weakref__", "_clock", "_grant", "_note", "_released", "key", "owner", "ttl")

    def __init__(
        self,
        request: LeaseRequest,
        fence: int,
        deadline: float,
        clock: Clock = boottime,
    ) -> None:
        self.key = request.key
        self.owner = request.owner
        self.ttl = request.ttl
        self._note = request.note
        self._clock = clock
        # Fence and deadline change together, under the eyes of other threads: one assignment.
        self._grant = (fence, deadline)
        self._released = False

    @property
    def fence(self) -> int:
        return self._grant[0]

    @property
    def note(self) -> Mapping[str, Any]:
        """What the holder told people about itself when it asked."""
        return self._note

    @property
    def deadline(self) -> float:
        """When the lease runs out, on the clock of `celery_singleton_lock.core.clock.boottime`."""
        return self._grant[1]

    @property
    def remaining(self) -> timedelta:
        """Time until the deadline; never negative."""
        return timedelta(seconds=max(0.0, self._grant[1] - self._clock()))

    @property
    def is_released(self) -> bool:
        return self._released

    @property
    def is_held(self) -> bool:
        """Whether nobody else can have been granted the lease yet."""
        return not self._released and self._clock() < self._grant[1]

    def ensure_held(self) -> None:
        """Raise `LeaseLost` unless `is_held`; `LeaseReleased` if it was given back."""
        self.ensure_not_released()
        if self._clock() >= self._grant[1]:
            raise LeaseLost(self.key, self.fence)

    def ensure_not_released(self) -> None:
        """Raise `LeaseReleased` if the lease was given back."""
        if self._released:
            raise LeaseReleased(self.key, self.fence)

    # For stores and for keep-alive, not for holders.

    def extend(self, deadline: float) -> None:
        self._grant = (self._grant[0], deadline)

    def regain(self, fence: int, deadline: float) -> None:
        self._grant = (fence, deadline)

    def lapse(self) -> None:
        """The store said that the lease is gone: end it now, whatever the deadline was."""
        self._grant = (self._grant[0], float("-inf"))

    def spend(self) -> None:
        self._released = True

    def __repr__(self) -> str:
        state = "released" if self._released else f"{self.remaining.total_seconds():.3f} s left"
        return f"<Lease {self.key!r} owner={self.owner!r} fence={self.fence} {state}>"


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is the asker's.

    `takeovers`: how many holders in a row let the lease run out before this one.
    `again`: the owner held it already (a lost reply, perhaps); same fence, new deadline.
    """

    lease: Lease
    takeovers: int = 0
    again: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """Somebody else's turn: a holder, or a parked lease's heir. An empty `by`: nobody is known."""

    by: str
    remaining: timedelta


@dataclass(frozen=True, slots=True)
class Done:
    """The asked position was reached before."""

    position: int
    outcome: str | None = None


Answer = Granted | Held | Done


@dataclass(frozen=True, slots=True)
class Park:
    """Keep the lease closed for `ttl` to all but `heir`; to all, if that is None."""

    heir: str | None
    ttl: timedelta

    def __post_init__(self) -> None:
        if self.heir is not None:
            check_name("heir", self.heir)


@dataclass(frozen=True, slots=True)
class Release:
    """Gives a lease back.

    `position` and `outcome` are recorded with it; a position never goes back. The record, with its
    fence, is kept for `keep_for`. `undo` takes the grant back as though it had not been: a park that
    it entered stays, and so does the count of takeovers.
    """

    lease: Lease
    position: int | None = None
    outcome: str | None = None
    keep_for: timedelta = timedelta(hours=1)
    park: Park | None = None
    undo: bool = False

    def __post_init__(self) -> None:
        check_position(self.position)
        if self.outcome is not None and self.position is None:
            raise ConfigurationError("an outcome belongs to a position: give both")
        if self.outcome is not None:
            check_name("outcome", self.outcome)
        if self.undo and (self.position is not None or self.park is not None):
            raise ConfigurationError("an undo records nothing: leave position and park out")


class RecordState(Enum):
    HELD = "held"
    PARKED = "parked"
    EXPIRED = "expired"
    FREE = "free"


@dataclass(frozen=True, slots=True)
class Record:
    """What the store keeps under one key, for people. Times are the store's."""

    key: str
    state: RecordState
    owner: str
    fence: int
    since: datetime
    until: datetime | None
    remaining: timedelta
    position: int | None
    outcome: str | None
    heir: str | None
    takeovers: int
    note: Mapping[str, Any]
    is_listed: bool = False
    """Whether `LeaseStore.expired` answers it once it has run out."""


@dataclass(frozen=True, slots=True)
class Page:
    """A named text in a book. `version` grows with every change; a `text` of None: it was removed.

    To change a page, write it with version 0: it becomes the newest. To put back what a store may have
    forgotten, write it as it was read: it stays as it is where there is a newer one.
    """

    name: str
    version: int
    text: str | None

    def __post_init__(self) -> None:
        check_name("page name", self.name, MAX_KEY_BYTES)
        check_position(self.version)


@dataclass(frozen=True, slots=True)
class Reading:
    """The pages of a book that changed after some revision, removed ones among them, oldest first."""

    revision: int
    pages: tuple[Page, ...]


class WrittenNote(Mapping[str, Any]):
    """A note that was written as JSON before; read only if somebody looks into it."""

    __slots__ = ("_read", "text")

    def __init__(self, text: str) -> None:
        self.text: Final = text
        self._read: Mapping[str, Any] | None = None

    def _whole(self) -> Mapping[str, Any]:
        if self._read is None:
            self._read = decode_note(self.text)
        return self._read

    def __getitem__(self, name: str) -> Any:
        return self._whole()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._whole())

    def __len__(self) -> int:
        return len(self._whole())


def encode_note(note: Mapping[str, Any]) -> str:
    """The note as JSON; empty for an empty one."""
    if isinstance(note, WrittenNote):
        return note.text
    if not note:
        return ""
    try:
        return json.dumps(note, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"a lease's note must be JSON: {error}") from error


def decode_note(text: str | bytes | None) -> Mapping[str, Any]:
    """The note as it was given. What is no JSON object (somebody else wrote it) is shown as text."""
    if not text:
        return {}
    try:
        note = json.loads(text)
    except (ValueError, RecursionError):
        note = None
    if isinstance(note, dict):
        return note
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return {"unreadable": shown}
