"""The one place where the parts are put together, once for each Celery app of a process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.core.errors import LeaseLost
from celery_singleton_lock.leases import LeaseStore, open_store
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.worker.keep_alive import KeepAlive
from celery_singleton_lock.worker.lock import Seconds, SingletonLock

if TYPE_CHECKING:
    from celery_singleton_lock.beat.schedule import Schedule

App = Any  # Celery ships no types.


class Parts:
    """The settings of an app, its lease store, and what keeps its leases. Opening does no I/O."""

    def __init__(self, settings: Settings) -> None:
        self.settings: Final = settings
        self.store: Final[LeaseStore] = open_store(
            settings.lock_url, prefix=settings.key_prefix, timeout=settings.store_timeout
        )
        self.keep_alive: Final = KeepAlive(self.store)

    @property
    def lock_ttl(self) -> timedelta:
        return self.settings.lock_ttl

    @property
    def shortest_lock_ttl(self) -> timedelta:
        return self.settings.shortest_lock_ttl


_parts: Final[weakref.WeakKeyDictionary[App, Parts]] = weakref.WeakKeyDictionary()
_opening: Final = threading.Lock()


def parts_of(app: App) -> Parts:
    """The parts of `app`, made when they are first asked for. Raises `ConfigurationError`."""
    # A proxy (celery.current_app) is another object each time: the app behind it is the one.
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _opening:
        if app not in _parts:
            _parts[app] = Parts(Settings.from_app(app))
        return _parts[app]


def open_schedule(app: App, *, by: str = "") -> Schedule:
    """The schedule of `app` at run time, to add, change, pause, trigger or backfill entries of it.

    `by` is who does it, for the log; by default the user of this process.
    """
    # Only who changes schedules needs it, and it brings celery.beat along.
    from celery_singleton_lock.beat.schedule import Schedule

    parts = parts_of(app)
    return Schedule(app, parts.settings, parts.store, by=by)


def singleton_lock(
    key: str,
    *,
    app: App | None = None,
    ttl: Seconds | None = None,
    wait: Seconds | None = 0,
    on_lost: Callable[[LeaseLost], None] | None = None,
) -> SingletonLock:
    """A lock for your own code, as a context manager or a decorator, for functions and coroutines.

    ::

        with singleton_lock("import", app=app, ttl=30, wait=5) as lease:
            lease.ensure_held()

        @singleton_lock("import", app=app)
        async def import_all(): ...

    It is kept while the block runs; `ttl` (default: ``singleton_lock_ttl``) is how long it outlives a
    process that dies. `wait`: how long to wait for it, in seconds; None for ever. `LockNotAcquired` is
    raised when that is over. `on_lost` is called, from another thread, when the lease may be lost.
    `app` defaults to Celery's current app.
    """

    def parts() -> Parts:
        if app is not None:
            return parts_of(app)
        from celery import current_app

        return parts_of(current_app)

    return SingletonLock(key, parts, ttl=ttl, wait=wait, on_lost=on_lost)
