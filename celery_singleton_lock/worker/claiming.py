"""What the ledger says to an execution that the store has let in. No Celery in it.

It is asked only where the store alone cannot know: the run was, or may have been, begun before, or the
store may have forgotten it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.claims import Claim, Claims, Finished, Stale
from celery_singleton_lock.ledger.happenings import ENDS, LETTER_DUE_REASON, Status
from celery_singleton_lock.ledger.queries import Queries

from .run import FAILED, LETTER_DUE, SKIPPED, SUCCEEDED, Ask, run_key

_OUTCOMES: Final = {
    Status.SUCCEEDED: SUCCEEDED,
    Status.SKIPPED: SKIPPED,
    Status.FAILED: FAILED,
    Status.DEAD: FAILED,
}


@dataclass(frozen=True, slots=True)
class Committed:
    """An execution before has committed the run's effects, and then died: what is left to do is to tell
    of its `result`."""

    result: Any


@dataclass(frozen=True, slots=True)
class Over:
    """The run ended, with this outcome, and the store has forgotten it."""

    outcome: str


@dataclass(frozen=True, slots=True)
class Outrun:
    """Somebody with a larger fence executes it."""

    by: str


Word = Committed | Over | Outrun | None
"""None: go on."""


class Claiming:
    def __init__(self, ledger: Ledger, remember_for: timedelta) -> None:
        self._claims = Claims(ledger)
        self._queries = Queries(ledger)
        self._remember_for = remember_for

    def ask(
        self, ask: Ask, fence: int, takeovers: int, slot: datetime | None, since: datetime | None
    ) -> Word:
        """`since`: as `Memory.since` tells. Raises `LedgerUnavailable`."""
        is_forgotten = self._may_be_forgotten(slot, since)
        if not (takeovers or ask.was_started or ask.waited or is_forgotten):
            return None
        if is_forgotten and (word := self._recall(ask)) is not None:
            return word
        claim = Claim(key=ask.run_key, owner=ask.owner, fence=fence, position=ask.position)
        match self._claims.take(claim):
            case Finished(result):
                return Committed(result)
            case Stale(owner):
                return Outrun(owner)
        return None

    def _may_be_forgotten(self, slot: datetime | None, since: datetime | None) -> bool:
        remembered = datetime.now(UTC) - self._remember_for
        if slot is None:
            # When it was sent is not known; but not longer ago than it would be remembered.
            return since is not None and since > remembered
        return slot < remembered or (since is not None and slot < since)

    def _recall(self, ask: Ask) -> Word:
        """What history knows of a run that the store may have forgotten."""
        if ask.run_key != run_key(ask.run):
            return None  # a replay: history is about the run as it was before
        past = self._queries.run(ask.run)
        if past is None:
            return None
        if past.status is Status.FAILED and past.reason == LETTER_DUE_REASON:
            return Over(LETTER_DUE)
        return Over(_OUTCOMES[past.status]) if past.status in ENDS else None
