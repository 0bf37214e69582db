"""Run every scheduled Celery task once, on any number of replicas, and lose none."""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.bootstrap import open_schedule, singleton_lock
from celery_singleton_lock.core.errors import (
    ConfigurationError,
    LeaseLost,
    LeaseReleased,
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
    from celery_singleton_lock.beat.once import once
    from celery_singleton_lock.beat.scheduler import SingletonScheduler, SingletonSchedulerMixin

__version__ = "0.1.0.dev0"

__all__ = [
    "FINISHED",
    "ConfigurationError",
    "Done",
    "Granted",
    "Held",
    "Lease",
    "LeaseLost",
    "LeaseReleased",
    "LeaseRequest",
    "LeaseStore",
    "LockNotAcquired",
    "Park",
    "Record",
    "RecordState",
    "Release",
    "SingletonError",
    "SingletonScheduler",
    "SingletonSchedulerMixin",
    "StoreUnavailable",
    "__version__",
    "once",
    "open_schedule",
    "open_store",
    "singleton_lock",
]


_LAZY: Final = {
    "SingletonScheduler": "beat.scheduler",
    "SingletonSchedulerMixin": "beat.scheduler",
    "once": "beat.once",
}
"""Only beat needs these, and they bring celery.beat along."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
