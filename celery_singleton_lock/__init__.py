"""Run every scheduled Celery task once, on any number of replicas, and lose none."""

from typing import TYPE_CHECKING, Any

from celery_singleton_lock.bootstrap import singleton_lock
from celery_singleton_lock.core.errors import (
    BrokerUnavailable,
    ConfigurationError,
    LeaseLost,
    LeaseReleased,
    LetterNotSent,
    LockNotAcquired,
    SingletonError,
    StoreUnavailable,
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
    from celery_singleton_lock.beat.scheduler import SingletonScheduler

__version__ = "0.1.0.dev0"

__all__ = [
    "FINISHED",
    "BrokerUnavailable",
    "ConfigurationError",
    "Done",
    "Granted",
    "Held",
    "Lease",
    "LeaseLost",
    "LeaseReleased",
    "LeaseRequest",
    "LeaseStore",
    "LetterNotSent",
    "LockNotAcquired",
    "Park",
    "Record",
    "RecordState",
    "Release",
    "SingletonError",
    "SingletonScheduler",
    "StoreUnavailable",
    "__version__",
    "open_store",
    "singleton_lock",
]


def __getattr__(name: str) -> Any:
    # Only beat needs it, and it brings celery.beat along.
    if name == "SingletonScheduler":
        from celery_singleton_lock.beat.scheduler import SingletonScheduler

        return SingletonScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
