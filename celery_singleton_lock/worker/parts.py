"""What a process works with: the settings of an app, its lease store, and what keeps its leases."""

from __future__ import annotations

import threading
import weakref
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.core.facts import Listeners
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.observability.listening import listeners_of
from celery_singleton_lock.observability.measuring import open_measured_store
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.settings.urls import is_sql

from .confirming import Confirming
from .endings import Endings
from .keep_alive import KeepAlive

if TYPE_CHECKING:
    from celery_singleton_lock.ledger import Ledger

    from .waiting import Waiting

App = Any  # Celery ships no types.


class Remembrance:
    """What there is with a ledger."""

    def __init__(self, settings: Settings, store: LeaseStore, ledger: Ledger) -> None:
        # Not for others: they bring SQLAlchemy along.
        from .claiming import Claiming
        from .memory import Memory

        self.ledger: Final = ledger
        self.claiming: Final = Claiming(ledger, settings.remember_for)
        # A database does not forget; and all that ask would wait for each other at this one row.
        self.memory: Final = None if is_sql(settings.lock_url) else Memory(store, ledger)


class Parts:
    """Opening does no I/O."""

    def __init__(self, settings: Settings, listeners: Listeners, ledger: Ledger | None = None) -> None:
        self.settings: Final = settings
        self.listeners: Final = listeners
        self.store: Final[LeaseStore] = open_measured_store(settings)
        self.keep_alive: Final = KeepAlive(self.store)
        self.confirming: Final = Confirming(self.store)
        self.endings: Final = Endings()
        self.remembrance: Final = None if ledger is None else Remembrance(settings, self.store, ledger)

    @cached_property
    def waiting(self) -> Waiting:
        # Not for clients: it brings Celery's worker along.
        from .waiting import Waiting

        return Waiting(self.store)

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
            settings = Settings.from_app(app)
            _parts[app] = Parts(settings, listeners_of(app), _ledger_of(app, settings))
        return _parts[app]


def _ledger_of(app: App, settings: Settings) -> Ledger | None:
    if settings.database_url is None:
        return None
    from celery_singleton_lock.ledger import ledger_of

    return ledger_of(app)
