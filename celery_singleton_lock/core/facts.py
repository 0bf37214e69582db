"""What happened, as beat and the workers tell it to whoever listens: history, metrics, traces, alerts.

A fact is told after it came true, in the process where it did, and once. A process that is killed tells
nothing more, so whatever counts on facts must bear that one is missing. What a promise rests on is in
the lease store and in the ledger's claims, never in these.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunName:
    """Which run: its id is the Celery task id. `entry` and `slot` are None if beat did not send it."""

    id: str
    task: str
    entry: str | None = None
    slot: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    at: datetime
    """In beat the store's time, as far as it is known; in a worker its own."""


# Of beat


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsPublished(Fact):
    """The broker has taken all of these."""

    runs: tuple[RunName, ...]
    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotsDue(Fact):
    """Their time has come, and they are not published yet: something is in the way. Told some seconds
    later, and not of slots that are published at once."""

    runs: tuple[RunName, ...]
    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotMissed(Fact):
    """It was not published, and will not be: "too old" for the catch-up rule, or "refused"."""

    run: RunName
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPublishedAgain(Fact):
    """Nobody has started its run in time: its message is lost, or waits in a long queue."""

    run: RunName
    replica: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPublishedAgain(Fact):
    """Its worker died. `is_whole` is False where its message was too large to be kept in its record:
    the broker will deliver it again, in its own time."""

    run: RunName
    fence: int
    worker: str
    is_whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MembersChanged(Fact):
    """Who is alive among the beat replicas, as this one sees it."""

    replica: str
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleBegan(Fact):
    """A replica of beat cannot go on until `part` ("store" or "broker") is back."""

    part: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TroubleEnded(Fact):
    part: str


# Of a worker


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Fact):
    """The body is about to be called. `takeovers`: how many in a row died with the run before.
    `waited`: since its message was first kept in this worker, if it was."""

    run: RunName
    worker: str
    attempt: int
    fence: int
    takeovers: int
    waited: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Fact):
    """An attempt is over, however it ended.

    `outcome`: "succeeded", "failed" (for good), "failed, letter due" (for good, and a dead letter
    follows), "retried" (after `retry_in`), "ignored", "rejected", "revoked"; "lost": its successor ends
    it; "put back": another worker begins it anew. `took` is None where the parent process ended it.
    """

    run: RunName
    worker: str
    attempt: int
    fence: int
    outcome: str
    took: timedelta | None = None
    error: str | None = None
    retry_in: timedelta | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSkipped(Fact):
    """Another run, `by`, does its job: "overlap", "waited too long" or "duplicate"."""

    run: RunName
    worker: str
    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyIgnored(Fact):
    """A message of a run that was that far already: with this `outcome`."""

    run: RunName
    worker: str
    outcome: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKept(Fact):
    """Its message waits in the worker: "held", "overlap", "lost", "store away" or "not published"."""

    run: RunName
    worker: str
    reason: str
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseMayBeLost(Fact):
    run: RunName
    worker: str
    key: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOverdue(Fact):
    run: RunName
    worker: str
    expected: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLettered(Fact):
    """`letter` is what `Letter.facts` says of it. A message that is none of Celery's has no run."""

    run: RunName | None
    reason: str
    letter: Mapping[str, Any]


Listener = Callable[[Fact], None]


class Listeners:
    """Whoever is told. They must not wait: they are called where the fact happened."""

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self._adding = threading.Lock()

    def __bool__(self) -> bool:
        """Whether there is any: ask before a fact is made, which takes longer than to ask."""
        return bool(self._listeners)

    def add(self, listener: Listener) -> Listener:
        with self._adding:
            self._listeners = (*self._listeners, listener)
        return listener

    def remove(self, listener: Listener) -> None:
        with self._adding:
            self._listeners = tuple(each for each in self._listeners if each != listener)

    def tell(self, fact: Fact) -> None:
        """Tell all; what one raises is logged, and neither a run nor another listener suffers."""
        for listener in self._listeners:
            try:
                listener(fact)
            except Exception:
                logger.exception("listener_failed fact=%s", type(fact).__name__)
