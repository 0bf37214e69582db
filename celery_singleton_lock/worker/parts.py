"""What a process works with: the settings of an app, its lease store, and what keeps its leases."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from typing import Any, Final

from celery_singleton_lock.core.facts import Listeners
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.observability.listening import listeners_of
from celery_singleton_lock.observability.measuring import open_measured_store
from celery_singleton_lock.settings import Settings

from .confirming import Confirming
from .keep_alive import KeepAlive

App = Any  # Celery ships no types.


class Parts:
    """Opening does no I/O."""

    def __init__(self, settings: Settings, listeners: Listeners) -> None:
        self.settings: Final = settings
        self.listeners: Final = listeners
        self.store: Final[LeaseStore] = open_measured_store(settings)
        self.keep_alive: Final = KeepAlive(self.store)
        self.confirming: Final = Confirming(self.store)

    @property
    def lock_ttl(self) -> timedelta:
        return self.settings.lock_ttl

    @property
    def shortest_lock_ttl(self) -> timedelta:
        return self.settings.shortest_lock_ttl


_parts: Final[weakref.WeakKeyDictionary[App, Parts]] = weakref.WeakKeyDictionary()
_opening: Final = threading.Lock()


def parts_of(app: App) -> Parts:
    """The parts of `app`, made once, when they are first asked for. Raises `ConfigurationError`."""
    # A proxy (celery.current_app) is another object each time: the app behind it is the one.
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _opening:
        if app not in _parts:
            _parts[app] = Parts(Settings.from_app(app), listeners_of(app))
        return _parts[app]
