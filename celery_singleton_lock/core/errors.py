"""Every error the package raises.

::

    SingletonError
    ├── ConfigurationError        a setting or an argument is wrong; also a ValueError
    │   └── LedgerOutdated        the tables of the ledger are missing, or those of an older version
    ├── LedgerUnavailable         the database of the ledger did not answer, or refused to serve
    ├── StoreUnavailable          the store did not answer, or refused to serve
    ├── LockNotAcquired           ``singleton_lock`` waited in vain; also a TimeoutError
    ├── DuplicateRun              an equal call is queued or running, and ``on_duplicate`` is "raise"
    ├── WorkersDied               a run ended its workers too often
    ├── BrokerUnavailable         the broker did not answer, or refused to serve
    ├── LetterNotSent             a dead letter was not confirmed by the broker
    └── LeaseLost                 the lease may be somebody else's by now
        └── LeaseReleased         the lease was given back by its own holder

Contention is not here: it is a value (`Held`, `Done`). Errors carry facts as attributes, and take them
as positional arguments so that they survive pickling on their way through a result backend.
"""

from __future__ import annotations


class SingletonError(Exception):
    """Base of all errors of this package."""


class ConfigurationError(SingletonError, ValueError):
    """A setting or an argument cannot work. Raised early, before anything is touched."""


class LedgerOutdated(ConfigurationError):
    """The tables of the ledger are missing (`found` is None), or older than this version needs."""

    def __init__(self, ledger: str, found: str | None, needed: str) -> None:
        super().__init__(ledger, found, needed)
        self.ledger = ledger
        self.found = found
        self.needed = needed

    def __str__(self) -> str:
        state = "has no tables" if self.found is None else f"is at revision {self.found}"
        return (
            f"the ledger in {self.ledger} {state}, and this version needs revision {self.needed}: run "
            "`celery -A app singleton db upgrade`"
        )


class LedgerUnavailable(SingletonError):
    """The database of the ledger did not answer in time, or answered that it cannot serve now.

    Whether a write took effect is unknown: all that the ledger writes can be written again.
    """

    def __init__(self, ledger: str, reason: str) -> None:
        super().__init__(ledger, reason)
        self.ledger = ledger
        self.reason = reason

    def __str__(self) -> str:
        return f"the ledger in {self.ledger} is unavailable: {self.reason}"


class StoreUnavailable(SingletonError):
    """The store did not answer in time, or answered that it cannot serve now.

    Whether the call took effect is unknown: ask again with the same owner.
    """

    def __init__(self, store: str, reason: str) -> None:
        super().__init__(store, reason)
        self.store = store
        self.reason = reason

    def __str__(self) -> str:
        return f"lease store {self.store} is unavailable: {self.reason}"


class LockNotAcquired(SingletonError, TimeoutError):
    """`singleton_lock` did not get its lock within ``wait``."""

    def __init__(self, key: str, holder: str, waited_seconds: float) -> None:
        super().__init__(key, holder, waited_seconds)
        self.key = key
        self.holder = holder
        self.waited_seconds = waited_seconds

    def __str__(self) -> str:
        return (
            f"lock {self.key!r} is held by {self.holder}; gave up after {self.waited_seconds:.1f} s. "
            "Wait longer (wait=...), or treat this as 'somebody else is doing it'"
        )


class DuplicateRun(SingletonError):
    """An equal call is queued or running, as the run named here."""

    def __init__(self, task: str, run: str) -> None:
        super().__init__(task, run)
        self.task = task
        self.run = run

    def __str__(self) -> str:
        return (
            f"an equal call of task {self.task!r} is queued or running as {self.run}: wait for that, "
            'or use on_duplicate="join" to be given its result'
        )


class WorkersDied(SingletonError):
    """The run was started and not ended so often that it is taken to be what kills its workers."""

    def __init__(self, task: str, run: str, deaths: int) -> None:
        super().__init__(task, run, deaths)
        self.task = task
        self.run = run
        self.deaths = deaths

    def __str__(self) -> str:
        return (
            f"run {self.run} of task {self.task!r} ended {self.deaths} workers in a row: see their log "
            "for what killed them (memory, perhaps), and raise max_deliveries if it was not the task"
        )


class BrokerUnavailable(SingletonError):
    """Nothing, or not all, was confirmed: what was asked for must be asked for again."""


class LetterNotSent(SingletonError):
    """The broker did not confirm a dead letter: the message it is about must stay where it is.

    Whether the letter is in the queue is unknown: send it again, a repeat has the same id.
    """

    def __init__(self, queue: str, reason: str) -> None:
        super().__init__(queue, reason)
        self.queue = queue
        self.reason = reason

    def __str__(self) -> str:
        return (
            f"dead letter not sent to queue {self.queue!r}: {self.reason}. Keep the message and send "
            "the letter again; if this lasts, see that the broker is up and that queue takes messages"
        )


class LeaseLost(SingletonError):
    """The lease ran out, or was taken: somebody else may hold it. Stop, and write nothing more."""

    def __init__(self, key: str, fence: int) -> None:
        super().__init__(key, fence)
        self.key = key
        self.fence = fence

    def __str__(self) -> str:
        return (
            f"lease {self.key!r} with fence {self.fence} may be lost: another holder may be at work, "
            "so stop without writing"
        )


class LeaseReleased(LeaseLost):
    """The lease was used after its holder gave it back."""

    def __str__(self) -> str:
        return f"lease {self.key!r} with fence {self.fence} was released and cannot be used again"
