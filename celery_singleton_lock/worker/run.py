"""A run as its worker sees it: what is asked of the store, and what the answers mean. No I/O."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from celery_singleton_lock.core.errors import ConfigurationError
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

if TYPE_CHECKING:
    from .effects import Effects, Transaction

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
    was_started: bool = False
    """It was, or may have been: then it is never skipped."""
    may_take_over: bool = False
    """Another execution may have begun with this very attempt: see `stand_back`."""
    waited: timedelta = timedelta(0)
    lock_wait: timedelta | None = None
    max_deliveries: int = 5

    def requests(self) -> list[LeaseRequest]:
        requests = [
            LeaseRequest(self.run_key, self.owner, self.ttl, position=self.position, note=self.note)
        ]
        if self.task_key is not None:
            requests.append(
                LeaseRequest(self.task_key, self.owner, self.ttl, heir=self.run, note=self.about)
            )
        if self.call_key is not None:
            # Its owner is the run, as it was in the client: the lease goes from hand to hand.
            requests.append(
                LeaseRequest(self.call_key, self.run, self.ttl, heir=self.run, note=self.about)
            )
        return requests


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
    return Keep("overlap", task.heir or task.owner, task.remaining)


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
    if was_started:
        return Keep("overlap", task.by, task.remaining)
    if ask.overlap == "skip":
        return Skip("overlap", task.by, lease)
    if ask.lock_wait is not None and ask.waited >= ask.lock_wait:
        return Skip("waited too long", task.by, lease)
    return Keep("overlap", task.by, task.remaining)


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
_AFTER_ITS_END_S: Final = 0.05


def pause_before_offer(
    keep: Keep, offers: int, waited: timedelta, lock_wait: timedelta | None
) -> float:
    """Seconds until a message that was kept `offers` times is offered again.

    A holder may let go long before its lease would end, so the end is only the latest time to ask; and
    many that wait should not come all at once.
    """
    pause = min(_FIRST_S * 2.0 ** min(offers, 16), _LONGEST_S)
    if keep.remaining:
        pause = min(pause, keep.remaining.total_seconds() + _AFTER_ITS_END_S)
    pause *= random.uniform(0.5, 1.0)  # nosec B311 # noqa: S311 - jitter, not a secret
    if lock_wait is not None and keep.reason == "overlap":
        pause = min(pause, max(0.0, (lock_wait - waited).total_seconds()) + _AFTER_ITS_END_S)
    return pause


# What the body of a task sees


class Fences(NamedTuple):
    run: int
    task: int


class Run:
    """The run that is being executed: `Task.current_run`, or `current_run()`."""

    __slots__ = (
        "_effects", "_leases", "_loose_fence", "attempt", "entry", "id", "is_committed", "slot", "task",
    )  # fmt: skip

    def __init__(
        self,
        *,
        id: str,  # noqa: A002 - the name that users see
        task: str,
        attempt: int = 1,
        entry: str | None = None,
        slot: datetime | None = None,
        leases: Leases | None = None,
        loose_fence: int = 0,
        effects: Effects | None = None,
    ) -> None:
        self.id: Final = id
        self.task: Final = task
        self.attempt: Final = attempt
        """1 for the first, one more for each retry."""
        self.entry: Final = entry
        """The entry of the beat schedule; None if beat did not send it."""
        self.slot: Final = slot
        """When it was due; None if beat did not send it."""
        self._leases = leases
        self._loose_fence = loose_fence
        self._effects = effects
        self.is_committed = False
        """Whether its `transaction` was committed, and the run is finished by that."""

    @property
    def is_locked(self) -> bool:
        """False for a direct call, in eager mode, and where it runs although the store is away."""
        return self._leases is not None

    @property
    def fence(self) -> int:
        """Grows with every execution of the job; read it when you write, it may grow meanwhile."""
        if self._leases is None:
            return self._loose_fence
        return (self._leases.task or self._leases.run).fence

    @property
    def remaining(self) -> timedelta:
        """Until the lease ends, if it is not renewed. Without a lock: for ever."""
        if self._leases is None:
            return timedelta.max
        return min(lease.remaining for lease in self._guarding)

    def ensure_held(self) -> None:
        """Raise `LeaseLost` if somebody else may be executing this run, or this job."""
        for lease in self._guarding:
            lease.ensure_held()

    @property
    def fences(self) -> Fences:
        """Of each of its leases; 0 where there is none."""
        leases = self._leases
        if leases is None:
            return Fences(0, 0)
        return Fences(leases.run.fence, 0 if leases.task is None else leases.task.fence)

    def transaction(self, session: Any, *, result: Any = None) -> Transaction:
        """Commit what is done in this block, and the end of the run, together or not at all::

            with run.transaction(session):
                session.add(row)

        `session` is SQLAlchemy's, on the database of the ledger; it is committed at the end of the
        block, and rolled back if that raises. An AsyncSession needs ``async with``. `LeaseLost` is
        raised, and nothing stays, if another execution of the run has begun or has committed, or a
        later run of the job has. After the commit the run is finished, whatever becomes of the worker:
        do it last. `result`, in JSON, is what the task returns if its worker dies just then.
        """
        from .effects import Transaction

        is_loose = self._leases is None and self._loose_fence
        if self._effects is None and not is_loose:
            raise ConfigurationError("a transaction needs the ledger: set singleton_database_url")
        return Transaction(self, self._effects, session, result)

    @property
    def _guarding(self) -> list[Lease]:
        if self._leases is None:
            return []
        return [lease for lease in (self._leases.run, self._leases.task) if lease is not None]

    def __repr__(self) -> str:
        return f"<Run {self.id} of {self.task} attempt={self.attempt} fence={self.fence}>"


class Skipped(dict[str, Any]):
    """The result of a run that was skipped because another run did its job: `reason`, `by`.

    It is a plain dict in every serializer; `Skipped.read` finds out whether a result is one.
    """

    MARK: Final = "singleton_skipped"

    def __init__(self, reason: str, by: str) -> None:
        super().__init__({self.MARK: reason, "by": by})

    def __reduce__(self) -> Any:
        return type(self), (self.reason, self.by)

    @property
    def reason(self) -> str:
        """ "overlap", "waited too long" or "duplicate"."""
        return str(self[self.MARK])

    @property
    def by(self) -> str:
        """Who does the job: an execution, or a run."""
        return str(self["by"])

    @classmethod
    def read(cls, result: object) -> Skipped | None:
        """None: it is the result of a run that was executed."""
        if isinstance(result, Mapping) and cls.MARK in result:
            return cls(str(result[cls.MARK]), str(result.get("by", "")))
        return None
