"""What the body of a task sees of its run, and what others see of one that was skipped."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.models import Lease

from .run import Leases

if TYPE_CHECKING:
    from .effects import Effects, Transaction


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
