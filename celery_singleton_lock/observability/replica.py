"""What a process of ours serves of itself: health, and its numbers with those of its children."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Mapping
from datetime import timedelta
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.core.errors import SingletonError, StoreUnavailable
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.leases import open_store
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.settings import Settings

from .health import Health, Remembered
from .http import Answer, StatusServer, plain
from .measuring import Metrics, metrics_of

if TYPE_CHECKING:
    from .metrics.catalogue import Metric
    from .metrics.counts import Rows

App = Any  # Celery ships no types.

_NOTHING: Final = timedelta(0)
STORE_FOR_S: Final = 1.0
LETTERS_FOR_S: Final = 15.0
OUTBOX_FOR_S: Final = 15.0


class Replica:
    """Of the process that made it. In a child of that one it does nothing."""

    def __init__(self, app: App, settings: Settings, address: str) -> None:
        self.health: Final = Health()
        self.metrics: Final[Metrics | None] = metrics_of(settings)
        self._app = app
        self._settings = settings
        self._made_in = os.getpid()
        self._roles: set[str] = set()
        self._starting = threading.Lock()
        # With connections of its own: nobody's work is to wait for a probe.
        self._store = open_store(
            settings.lock_url, prefix=settings.key_prefix, timeout=settings.store_timeout
        )
        self._group = beat_group(app.main or "")
        self._beats = Remembered(self._count_beats, STORE_FOR_S)
        self._letters = Remembered(self._count_letters, LETTERS_FOR_S)
        self._outbox = Remembered(self._look_into_outbox, OUTBOX_FOR_S)
        self.health.ready_if("store", self._why_no_store)
        self.server: Final = StatusServer(
            address,
            {
                "/livez": self.health.livez,
                "/readyz": self.health.readyz,
                "/metrics": self._metrics_page,
            },
        )

    @property
    def is_ours(self) -> bool:
        """Whether this is the process that serves."""
        return self._made_in == os.getpid()

    def begin(self, role: str) -> None:
        """Serve from now on. `role`: "beat" or "worker"; a process may have both."""
        with self._starting:
            if not self.is_ours:
                return
            if not self._roles:
                self.server.start()
            self._roles.add(role)

    def end(self, role: str) -> None:
        """Stop serving when the last role of the process has ended. Twice is once."""
        with self._starting:
            if not self.is_ours or role not in self._roles:
                return
            self._roles.discard(role)
            if self._roles:
                return
        self.server.stop()
        self._store.close()
        if self.metrics is not None:
            self.metrics.counts.close()

    # Looking

    def _count_beats(self) -> int | str:
        """How many are alive; a text: why the store cannot tell."""
        try:
            meeting = self._store.meet(self._group, "", _NOTHING)
        except StoreUnavailable as error:
            return f"the lease store is away: {error.reason}"
        return len(meeting.members)

    def _why_no_store(self) -> str | None:
        beats = self._beats()
        return beats if isinstance(beats, str) else None

    def _count_letters(self) -> int | None:
        try:
            return dead_letters_of(self._app).count()
        except SingletonError:
            return None

    def _look_into_outbox(self) -> Mapping[str, float | None]:
        """Nothing where there is no ledger, or it does not answer."""
        if self._settings.database_url is None:
            return {}
        from celery_singleton_lock.recovery.outbox.reading import Outbox

        outbox = Outbox(self._settings)
        try:
            return outbox.status().facts
        except SingletonError:
            return {}
        finally:
            outbox.close()

    # Numbers

    def _metrics_page(self, accept: str) -> Answer:
        if self.metrics is None:
            return plain(HTTPStatus.NOT_IMPLEMENTED, "pip install 'celery-singleton-lock[metrics]'\n")
        from .metrics.exposition import SingletonCollector, page

        content_type, body = page(SingletonCollector(self._rows), accept)
        return Answer(HTTPStatus.OK, content_type, body)

    def _rows(self) -> Rows:
        """What was counted, and what only a look can tell. What cannot be told now is left out."""
        from .metrics import catalogue as all_

        assert self.metrics is not None  # nosec B101 # noqa: S101 - for the type checker
        rows = self.metrics.counts.read()
        looks: dict[Metric, object] = {
            all_.MEMBERS: self._beats(),
            all_.DEAD_LETTERS: self._letters(),
            all_.READY: not self.health.why_not_ready(),
        }
        for metric, value in looks.items():
            if isinstance(value, int):
                rows[metric.name, (), ""] = float(value)
        waiting = self._outbox()
        if waiting:
            rows[all_.OUTBOX_OLDEST.name, (), ""] = waiting["oldest_seconds"] or 0.0
            for state in ("pending", "held", "dead"):
                rows[all_.OUTBOX.name, (state,), ""] = float(waiting[state] or 0)
        for role in self._roles:
            rows[all_.INFO.name, (role, version("celery-singleton-lock")), ""] = 1.0
        return rows


_replicas: Final[weakref.WeakKeyDictionary[App, Replica]] = weakref.WeakKeyDictionary()
_making: Final = threading.Lock()


def replica_of(app: App) -> Replica | None:
    """The one of `app`, made when it is first asked for; None where ``singleton_http`` is not set.
    Raises `ConfigurationError`."""
    with _making:
        if app not in _replicas:
            settings = Settings.from_app(app)
            if settings.http is None:
                return None
            _replicas[app] = Replica(app, settings, settings.http)
        return _replicas[app]
