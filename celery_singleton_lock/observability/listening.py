"""Who listens to the facts of an app, in this process."""

from __future__ import annotations

import threading
import weakref
from typing import Any, Final

from celery_singleton_lock.core.facts import Listeners
from celery_singleton_lock.settings import Settings

from .measuring import metrics_of

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
    if settings.alert_webhook is not None or settings.alert_smtp_url is not None:
        from .alerts.alerting import Alerting

        listeners.add(Alerting(app.main or "", settings))
    if settings.database_url is not None:
        # Only there: it brings SQLAlchemy along.
        from .history import new_history

        listeners.add(new_history(app))
    return listeners
