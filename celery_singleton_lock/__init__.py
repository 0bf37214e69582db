"""Run every scheduled Celery task once, on any number of replicas, and lose none."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.bootstrap import open_schedule, singleton_lock
from celery_singleton_lock.core.errors import (
    BrokerUnavailable,
    ConfigurationError,
    DuplicateRun,
    LeaseLost,
    LeaseReleased,
    LedgerOutdated,
    LedgerUnavailable,
    LetterNotSent,
    LockNotAcquired,
    SingletonError,
    StoreUnavailable,
    WorkersDied,
)
from celery_singleton_lock.core.models import (
    FINISHED,
    Done,
    Granted,
    Held,
    Lease,
    LeaseRequest,
    Park,
    Record,
    RecordState,
    Release,
)
from celery_singleton_lock.leases import LeaseStore, open_store

if TYPE_CHECKING:
    from celery_singleton_lock.beat.once import once
    from celery_singleton_lock.beat.scheduler import SingletonScheduler, SingletonSchedulerMixin
    from celery_singleton_lock.beat.sharding import sharded
    from celery_singleton_lock.recovery.dead_letters import DeadLetters, dead_letters_of
    from celery_singleton_lock.recovery.letters import Letter
    from celery_singleton_lock.streams import ChangeStream
    from celery_singleton_lock.worker.current_run import Run, Skipped
    from celery_singleton_lock.worker.task import SingletonTask, current_run

__version__ = "0.1.0.dev0"

__all__ = [
    "FINISHED",
    "BrokerUnavailable",
    "ChangeStream",
    "ConfigurationError",
    "DeadLetters",
    "Done",
    "DuplicateRun",
    "Granted",
    "Held",
    "Lease",
    "LeaseLost",
    "LeaseReleased",
    "LeaseRequest",
    "LeaseStore",
    "LedgerOutdated",
    "LedgerUnavailable",
    "Letter",
    "LetterNotSent",
    "LockNotAcquired",
    "Park",
    "Record",
    "RecordState",
    "Release",
    "Run",
    "SingletonError",
    "SingletonScheduler",
    "SingletonSchedulerMixin",
    "SingletonTask",
    "Skipped",
    "StoreUnavailable",
    "WorkersDied",
    "__version__",
    "current_run",
    "dead_letters_of",
    "once",
    "open_schedule",
    "open_store",
    "sharded",
    "singleton_lock",
]


# What not every process needs, and what brings more of Celery along.
_LATE: Final = {
    "ChangeStream": "celery_singleton_lock.streams",
    "sharded": "celery_singleton_lock.beat.sharding",
    "DeadLetters": "celery_singleton_lock.recovery.dead_letters",
    "Letter": "celery_singleton_lock.recovery.letters",
    "SingletonSchedulerMixin": "celery_singleton_lock.beat.scheduler",
    "once": "celery_singleton_lock.beat.once",
    "Run": "celery_singleton_lock.worker.current_run",
    "SingletonScheduler": "celery_singleton_lock.beat.scheduler",
    "SingletonTask": "celery_singleton_lock.worker.task",
    "Skipped": "celery_singleton_lock.worker.current_run",
    "current_run": "celery_singleton_lock.worker.task",
    "dead_letters_of": "celery_singleton_lock.recovery.dead_letters",
}


def __getattr__(name: str) -> Any:
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
