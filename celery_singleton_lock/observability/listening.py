"""Who listens to the facts of an app, in this process."""

from __future__ import annotations

import threading
import weakref
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.facts import Listeners
from celery_singleton_lock.settings import Settings

from .measuring import metrics_of

if TYPE_CHECKING:
    from .tracing import BeatTracing

App = Any  # Celery ships no types.

_listeners: Final[weakref.WeakKeyDictionary[App, Listeners]] = weakref.WeakKeyDictionary()
_making: Final = threading.Lock()


def listeners_of(app: App) -> Listeners:
    """The listeners of `app`: those its settings ask for, and whoever was added. They are made once,
    and are the same in the children of a process: a listener must survive a fork."""
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _making:
        if app not in _listeners:
            _listeners[app] = _asked_for(app, Settings.from_app(app))
        return _listeners[app]


def _asked_for(app: App, settings: Settings) -> Listeners:
    listeners = Listeners()
    if (metrics := metrics_of(settings)) is not None:
        listeners.add(metrics.recorder)
    if (tracing := beat_tracing_of(app, settings)) is not None:
        listeners.add(tracing)
    if settings.alert_webhook is not None or settings.alert_smtp_url is not None:
        from .alerts.alerting import Alerting

        listeners.add(Alerting(app.main or "", settings))
    if settings.database_url is not None:
        # Only there: it brings SQLAlchemy along.
        from .history import new_history

        listeners.add(new_history(app))
    return listeners


_tracings: Final[weakref.WeakKeyDictionary[App, BeatTracing]] = weakref.WeakKeyDictionary()


def beat_tracing_of(app: App, settings: Settings) -> BeatTracing | None:
    """None where ``singleton_tracing`` is not set. Raises `ConfigurationError` if it cannot be done."""
    if not settings.tracing:
        return None
    if app not in _tracings:
        _tracings[app] = tracing_module().BeatTracing()
    return _tracings[app]


def tracing_module() -> ModuleType:
    try:
        return import_module("celery_singleton_lock.observability.tracing")
    except ImportError as error:
        raise ConfigurationError(
            f"singleton_tracing is set, but {error.name} is missing: "
            "pip install 'celery-singleton-lock[tracing]'"
        ) from error
