"""The history of an app's runs, where it has a ledger."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Any, Final

from celery import signals

from celery_singleton_lock.ledger import required_ledger_of
from celery_singleton_lock.ledger.history import History
from celery_singleton_lock.ledger.losses import OnLost
from celery_singleton_lock.ledger.retention import Retention
from celery_singleton_lock.settings import Settings

from .measuring import metrics_of

_histories: Final[weakref.WeakSet[History]] = weakref.WeakSet()


def new_history(app: Any) -> History:
    """A listener that writes history until the process ends."""
    ledger, settings = required_ledger_of(app), Settings.from_app(app)
    retention = Retention(
        keep_for=settings.history_keep_for,
        keep_most=settings.history_keep_most,
        remember_for=settings.remember_for,
    )
    history = History(ledger, retention, on_lost=_counter_of(settings))
    _histories.add(history)
    return history


def _counter_of(settings: Settings) -> OnLost | None:
    metrics = metrics_of(settings)
    if metrics is None:
        return None
    from .metrics.catalogue import HISTORY_LOST

    return lambda facts: metrics.counts.add(HISTORY_LOST, by=facts)


def _close_all(**_: Any) -> None:
    for history in tuple(_histories):
        history.close()


# A child of a pool leaves without its exit handlers; a worker may be one of several in its process.
signals.worker_process_shutdown.connect(_close_all, weak=False, dispatch_uid="singleton-history")
signals.worker_shutdown.connect(_close_all, weak=False, dispatch_uid="singleton-history")


def _close_at_exit(process: int) -> None:
    if os.getpid() == process:
        _close_all()


atexit.register(_close_at_exit, os.getpid())
