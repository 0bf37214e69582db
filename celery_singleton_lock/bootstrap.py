"""Puts the parts together for a user's own code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from celery_singleton_lock.core.errors import LeaseLost
from celery_singleton_lock.worker.lock import Seconds, SingletonLock
from celery_singleton_lock.worker.parts import App, Parts, parts_of

if TYPE_CHECKING:
    from celery_singleton_lock.beat.schedule import Schedule


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
