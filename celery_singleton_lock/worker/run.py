"""A run as its worker sees it: what is asked of the store, and what the answers mean. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Literal

from celery_singleton_lock.core.models import (
    Answer,
    Done,
    Granted,
    Held,
    Lease,
    LeaseRequest,
    Record,
    RecordState,
)

from .options import Overlap

# What a run's record says of how it ended.
SUCCEEDED: Final = "succeeded"
FAILED: Final = "failed"
LETTER_DUE: Final = "failed, letter due"
REJECTED: Final = "rejected"
IGNORED: Final = "ignored"
RETRIED: Final = "retried"
SKIPPED: Final = "skipped"
REVOKED: Final = "revoked"

REPLACEMENTS_APART: Final = 1_000_000
"""More retries than one run ever has, so that what replaces it is beyond them all."""


def run_key(run: str, generation: int = 0) -> str:
    """A replayed run is a new one, under the old id: it has a record of its own."""
    return f"run:{run}:g{generation}" if generation else f"run:{run}"


def position_of(retries: int, replacements: int) -> int:
    """How far the run is with this message. `replacements`: how often ``Task.replace`` has sent another
    task under the same id."""
    return replacements * REPLACEMENTS_APART + retries + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What an execution asks for before it starts."""

    run: str
    owner: str
    position: int
    ttl: timedelta
    run_key: str
    task_key: str | None
    """None: overlap is allowed, so there is nothing to lock."""
    call_key: str | None = None
    note: Mapping[str, Any] = field(default_factory=dict)
    """Of the run's record; those of the others have `about`."""
    about: Mapping[str, Any] = field(default_factory=dict)
    overlap: Overlap = "skip"
    in_turn: bool = False
    """It fills a gap: it waits as with "queue", whatever `overlap` is."""
    was_started: bool = False
    """It was, or may have been: then it is never skipped."""
    may_take_over: bool = False
    """Another execution may have begun with this very attempt: see `stand_back`."""
    waited: timedelta = timedelta(0)
    lock_wait: timedelta | None = None
    max_deliveries: int = 5

    @property
    def would_wait(self) -> bool:
        """While another run does the job."""
        return self.was_started or self.may_take_over or self.in_turn or self.overlap == "queue"

    def requests(self) -> list[LeaseRequest]:
        requests = [
            LeaseRequest(self.run_key, self.owner, self.ttl, position=self.position, note=self.note),
            *self.task_request(),
        ]
        if self.call_key is not None:
            # Its owner is the run, as it was in the client: the lease goes from hand to hand.
            requests.append(
                LeaseRequest(self.call_key, self.run, self.ttl, heir=self.run, note=self.about)
            )
        return requests

    def task_request(self) -> list[LeaseRequest]:
        if self.task_key is None:
            return []
        request = LeaseRequest(
            self.task_key,
            self.owner,
            self.ttl,
            heir=self.run,
            note=self.about,
            waiting=self.would_wait,
        )
        return [request]


@dataclass(frozen=True, slots=True)
class Leases:
    run: Lease
    task: Lease | None = None
    call: Lease | None = None

    @property
    def all(self) -> list[Lease]:
        return [lease for lease in (self.run, self.task, self.call) if lease is not None]


@dataclass(frozen=True, slots=True)
class Start:
    leases: Leases
    takeovers: int = 0


@dataclass(frozen=True, slots=True)
class Copy:
    """The run is as far as this message, or further: nothing is left to do but its letter, perhaps."""

    outcome: str | None
    is_letter_due: bool


KeepReason = Literal["held", "overlap", "lost", "store away", "not published"]


@dataclass(frozen=True, slots=True)
class Keep:
    """Not now: the message stays with the worker, unacknowledged, and is offered again."""

    reason: KeepReason
    by: str
    remaining: timedelta
    job: str = ""
    """The key of the lease that another run has; empty where it waits for something else."""


SkipReason = Literal["overlap", "waited too long", "duplicate"]


@dataclass(frozen=True, slots=True)
class Skip:
    """Not at all: another run does this job. The run's own lease is held, to record that."""

    reason: SkipReason
    by: str
    lease: Lease


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Its workers died too often. The run's own lease is held, to record that."""

    deaths: int
    lease: Lease


Verdict = Start | Copy | Keep | Skip | Poisoned


def stand_back(ask: Ask, run: Record | None, task: Record | None) -> Keep | None:
    """Whether to ask for nothing yet, by the records of both: the lease of the run ran out, and
    another run does the job.

    A grant cannot be taken back entirely: whoever had the run before may no longer record its end. It
    may be about to, after an outage that was longer than its ttl; and the run would be repeated, for a
    grant that was of no use.
    """
    if run is None or run.state is not RecordState.EXPIRED or (run.position or 0) >= ask.position:
        return None
    if task is None or not _is_closed(task, ask):
        return None
    return Keep("overlap", task.heir or task.owner, task.remaining, ask.task_key or "")


def _is_closed(task: Record, ask: Ask) -> bool:
    if task.state is RecordState.PARKED:
        return task.heir != ask.run
    return task.state is RecordState.HELD and task.owner != ask.owner


def judge(ask: Ask, answers: Sequence[Answer]) -> Verdict:
    """What the store's answers to `ask.requests()` mean."""
    rest = list(answers)
    run = rest.pop(0)
    task = rest.pop(0) if ask.task_key is not None else None
    call = rest.pop(0) if ask.call_key is not None else None
    if isinstance(run, Done):
        return Copy(run.outcome, run.outcome == LETTER_DUE and run.position == ask.position)
    if isinstance(run, Held):
        return Keep("held", run.by, run.remaining)
    if run.takeovers >= ask.max_deliveries:
        return Poisoned(run.takeovers, run.lease)
    was_started = ask.was_started or run.takeovers > 0
    if isinstance(call, Held) and not was_started:
        return Skip("duplicate", call.by, run.lease)
    if isinstance(task, Held):
        return _overlap(ask, task, run.lease, was_started)
    return Start(Leases(run.lease, _lease(task), _lease(call)), run.takeovers)


def _overlap(ask: Ask, task: Held, lease: Lease, was_started: bool) -> Keep | Skip:
    if not was_started:
        if not ask.would_wait:
            return Skip("overlap", task.by, lease)
        if ask.lock_wait is not None and ask.waited >= ask.lock_wait:
            return Skip("waited too long", task.by, lease)
    return Keep("overlap", task.by, task.remaining, ask.task_key or "")


def _lease(answer: Answer | None) -> Lease | None:
    return answer.lease if isinstance(answer, Granted) else None


def to_take_back(verdict: Verdict, answers: Sequence[Answer]) -> list[Answer]:
    """What was granted beside what the verdict needs."""
    match verdict:
        case Start():
            return []
        case Skip(lease=kept) | Poisoned(lease=kept):
            return [each for each in answers if isinstance(each, Granted) and each.lease is not kept]
    return list(answers)


# Offering again

_FIRST_S: Final = 0.2
_LONGEST_S: Final = 5.0
_LONGEST_OF_THE_EAGER_S: Final = 1.0
_AFTER_ITS_END_S: Final = 0.05


def pause_before_offer(
    keep: Keep,
    offers: int,
    waited: timedelta,
    lock_wait: timedelta | None,
    *,
    is_eager: bool = False,
) -> float:
    """Seconds until a message that was kept `offers` times is offered again. `is_eager`: it is the
    first of those that wait for one job, and would not be told.

    A holder may let go long before its lease would end, so the end is only the latest time to ask; and
    many that wait should not come all at once.
    """
    longest = _LONGEST_OF_THE_EAGER_S if is_eager else _LONGEST_S
    pause = min(_FIRST_S * 2.0 ** min(offers, 16), longest)
    if keep.remaining:
        pause = min(pause, keep.remaining.total_seconds() + _AFTER_ITS_END_S)
    pause *= random.uniform(0.5, 1.0)  # nosec B311 # noqa: S311 - jitter, not a secret
    # Who still waits after that was started before, and is not skipped.
    if lock_wait is not None and keep.reason == "overlap" and waited < lock_wait:
        pause = min(pause, (lock_wait - waited).total_seconds() + _AFTER_ITS_END_S)
    return pause
