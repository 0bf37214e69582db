"""From facts to rows of history: which status follows, and which of two is the later one. No I/O.

Facts reach the database from several processes, in batches, and in any order. Each has a stage, made of
the fence of the execution it is about and of how far that was; a fence is a time in µs, or more. So a
fact can be weighed against a row that is there, and a late one never turns a status back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from celery_singleton_lock.core import facts
from celery_singleton_lock.core.redaction import redact

from .columns import LONGEST_NAME
from .losses import Gap

LONGEST_ERROR: Final = 4000


class Status(StrEnum):
    """Where a run stands."""

    DUE = "due"
    MISSED = "missed"
    PUBLISHED = "published"
    RUNNING = "running"
    RETRYING = "retrying"
    SKIPPED = "skipped"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"


ENDS: Final = frozenset({Status.SKIPPED, Status.SUCCEEDED, Status.FAILED, Status.DEAD})
"""After these a run does not start again by itself."""

LETTER_DUE_REASON: Final = "letter due"
"""Why a run failed that is not yet among the dead letters, and will be."""

_STEPS: Final = {
    Status.DUE: -1,
    Status.MISSED: 0,
    Status.PUBLISHED: 1,
    Status.RUNNING: 2,
    Status.RETRYING: 3,
    Status.SKIPPED: 4,
    Status.SUCCEEDED: 4,
    Status.FAILED: 4,
    Status.DEAD: 5,
}
_BACK: Final = 3
"""The step of an execution that came to nothing: its run waits again."""
_STEPS_OF_A_FENCE: Final = 8


def stage_of(step: int, fence: int = 0) -> int:
    """The larger one is the later one. `fence` 0: before any execution."""
    return fence * _STEPS_OF_A_FENCE + step


def _moment(at: datetime) -> int:
    """For a fact that knows no fence: later than that of an execution that began before."""
    return int(at.timestamp() * 1_000_000)


_ENDED: Final[Mapping[str, tuple[Status, str | None]]] = {
    "succeeded": (Status.SUCCEEDED, None),
    "failed": (Status.FAILED, None),
    "failed, letter due": (Status.FAILED, LETTER_DUE_REASON),
    "rejected": (Status.FAILED, "rejected"),
    "revoked": (Status.FAILED, "revoked"),
    "ignored": (Status.SKIPPED, "ignored"),
    "retried": (Status.RETRYING, None),
    "lost": (Status.PUBLISHED, "lost"),
    "put back": (Status.PUBLISHED, "put back"),
}


FIRST: Final = ("published_at", "started_at", "lag_s")
"""Of what was said of these, the earliest counts."""


@dataclass(slots=True)
class RunUpdate:
    """What one fact says of a run, or several that were merged, as one row would show it."""

    name: facts.RunName
    at: datetime
    status: Status
    stage: int
    fence: int = 0
    attempt: int = 0
    reason: str | None = None
    worker: str | None = None
    published_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    lag_s: float | None = None
    duration_s: float | None = None
    error: str | None = None

    def merged_with(self, other: RunUpdate) -> RunUpdate:
        """Both as one, by the same rules as in `writing`."""
        winner, loser = (other, self) if other.stage >= self.stage else (self, other)
        winner.name = _known(winner.name, loser.name)
        winner.at = min(winner.at, loser.at)
        winner.fence = max(winner.fence, loser.fence)
        winner.attempt = max(winner.attempt, loser.attempt)
        if winner.status is Status.DEAD and loser.status is Status.FAILED:
            # A letter does not know how long the attempt took that it is about.
            winner.duration_s = winner.duration_s or loser.duration_s
        for each in FIRST:
            known = [value for run in (self, other) if (value := getattr(run, each)) is not None]
            setattr(winner, each, min(known, default=None))
        return winner

    def row(self, prefix: str) -> dict[str, Any]:
        name = self.name
        return {
            "prefix": prefix,
            "run_id": cut(name.id),
            "task": cut(name.task) or None,
            "entry": name.entry and cut(name.entry),
            "slot": name.slot,
            "due_at": name.slot or self.at,
            "status": self.status.value,
            "reason": self.reason and cut(self.reason),
            "stage": self.stage,
            "attempt": self.attempt,
            "fence": self.fence,
            "worker": self.worker and cut(self.worker),
            "published_at": self.published_at,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "lag_s": self.lag_s,
            "duration_s": self.duration_s,
            "error": self.error,
        }


@dataclass(slots=True)
class News:
    """What is to be written: one row for each run, and rows for what did not simply succeed."""

    runs: dict[str, RunUpdate] = field(default_factory=dict)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    letters: list[dict[str, Any]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.runs) + len(self.attempts) + len(self.letters) + len(self.gaps)

    def add(self, fact: facts.Fact) -> None:
        for update in _updates(fact):
            row = cut(update.name.id)
            known = self.runs.get(row)
            self.runs[row] = update if known is None else known.merged_with(update)
        match fact:
            case facts.RunEnded() if fact.outcome != "succeeded" or fact.attempt > 1:
                self.attempts.append(_attempt(fact))
            case facts.DeadLettered():
                self.letters.append(_letter(fact))


def _updates(fact: facts.Fact) -> Iterator[RunUpdate]:
    at = fact.at
    match fact:
        case facts.SlotsPublished(runs=runs):
            for run in runs:
                yield RunUpdate(run, at, Status.PUBLISHED, _stage(Status.PUBLISHED), published_at=at)
        case facts.SlotsDue(runs=runs):
            for run in runs:
                yield RunUpdate(run, at, Status.DUE, _stage(Status.DUE))
        case facts.SlotMissed(run=run, reason=reason):
            yield RunUpdate(run, at, Status.MISSED, _stage(Status.MISSED), reason=reason)
        case facts.RunPublishedAgain(run=run, fence=fence, worker=worker):
            stage = stage_of(_BACK, fence)
            yield RunUpdate(
                run, at, Status.PUBLISHED, stage, fence, reason="worker died", worker=worker
            )
        case facts.RunStarted():
            yield _started(fact)
        case facts.RunEnded():
            yield _ended(fact)
        case facts.RunSkipped():
            stage = _stage(Status.SKIPPED, _moment(at))
            yield RunUpdate(
                fact.run, at, Status.SKIPPED, stage,
                reason=fact.reason, worker=fact.worker, ended_at=at,
            )  # fmt: skip
        case facts.DeadLettered(run=facts.RunName() as run):
            yield _died(fact, run)


def _stage(status: Status, fence: int = 0) -> int:
    return stage_of(_STEPS[status], fence)


def _started(fact: facts.RunStarted) -> RunUpdate:
    slot = fact.run.slot
    return RunUpdate(
        fact.run,
        fact.at,
        Status.RUNNING,
        _stage(Status.RUNNING, fact.fence),
        fact.fence,
        fact.attempt,
        reason="taken over" if fact.takeovers else None,
        worker=fact.worker,
        started_at=fact.at,
        lag_s=None if slot is None else (fact.at - slot).total_seconds(),
    )


def _ended(fact: facts.RunEnded) -> RunUpdate:
    status, reason = _ENDED.get(fact.outcome, (Status.FAILED, fact.outcome))
    came_to_nothing = status is Status.PUBLISHED
    return RunUpdate(
        fact.run,
        fact.at,
        status,
        stage_of(_BACK if came_to_nothing else _STEPS[status], fact.fence),
        fact.fence,
        fact.attempt,
        reason,
        fact.worker,
        ended_at=None if came_to_nothing else fact.at,
        duration_s=None if fact.took is None else fact.took.total_seconds(),
        error=_error(fact.error),
    )


def _died(fact: facts.DeadLettered, run: facts.RunName) -> RunUpdate:
    letter = fact.letter
    return RunUpdate(
        run,
        fact.at,
        Status.DEAD,
        _stage(Status.DEAD, _moment(fact.at)),
        attempt=letter.get("attempts") or 0,
        reason=fact.reason,
        worker=letter.get("worker"),
        ended_at=fact.at,
        error=_error(letter.get("exception")),
    )


def _attempt(fact: facts.RunEnded) -> dict[str, Any]:
    return {
        "run_id": cut(fact.run.id),
        "attempt": fact.attempt,
        "fence": fact.fence,
        "outcome": fact.outcome[:32],
        "worker": cut(fact.worker),
        "started_at": None if fact.took is None else fact.at - fact.took,
        "ended_at": fact.at,
        "duration_s": None if fact.took is None else fact.took.total_seconds(),
        "error": _error(fact.error),
    }


def _letter(fact: facts.DeadLettered) -> dict[str, Any]:
    task = fact.letter.get("task")
    return {
        "letter_id": cut(str(fact.letter.get("id") or "")),
        "run_id": fact.run and cut(fact.run.id),
        "task": task and cut(str(task)),
        "reason": cut(fact.reason),
        "error": _error(fact.letter.get("exception")),
        "dead_at": fact.at,
    }


def _known(name: facts.RunName, other: facts.RunName) -> facts.RunName:
    if name.task and name.slot:
        return name
    return facts.RunName(
        name.id, name.task or other.task, name.entry or other.entry, name.slot or other.slot
    )


def cut(name: str) -> str:
    """As much of a name as a column can keep."""
    return _storable(name)[:LONGEST_NAME]


def _error(text: object) -> str | None:
    return None if text is None else _storable(redact(str(text)))[:LONGEST_ERROR]


def _storable(text: str) -> str:
    """Without what a database refuses: NULs, and halves of a pair of surrogates."""
    if text.isascii():
        return text.replace("\0", " ")
    return text.encode(errors="replace").decode().replace("\0", " ")
