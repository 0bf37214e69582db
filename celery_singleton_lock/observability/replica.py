"""What a process of ours serves of itself: health, and its numbers with those of its children."""

from __future__ import annotations

import os
import threading
import weakref
from http import HTTPStatus
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.leases import open_store
from celery_singleton_lock.settings import Settings

from .health import Health
from .http import Answer, StatusServer, plain
from .inner_beat import InnerBeat
from .looks import Looks
from .measuring import Metrics, metrics_of
from .metrics import catalogue as all_

if TYPE_CHECKING:
    from .metrics.counts import Rows

App = Any  # Celery ships no types.


class Replica:
    """Of the process that made it. In a child of that one it does nothing."""

    def __init__(self, app: App, settings: Settings, address: str) -> None:
        self.health: Final = Health()
        self.metrics: Final[Metrics | None] = metrics_of(settings)
        self._made_in = os.getpid()
        self.inner_beat: InnerBeat | None = None
        """Of a worker with a beat inside."""
        self._roles: set[str] = set()
        self._starting = threading.Lock()
        # With connections of its own: nobody's work is to wait for a probe.
        self._store = open_store(
            settings.lock_url, prefix=settings.key_prefix, timeout=settings.store_timeout
        )
        self._looks = Looks(app, settings, self._store)
        self.health.ready_if("store", self._looks.why_no_store)
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

    def expect_beat(self, inner_beat: InnerBeat) -> None:
        """A process that is forked from this one will be a beat: what it tells is served here."""
        self.inner_beat = inner_beat
        inner_beat.report_to(self.health)

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

    # Numbers

    def _metrics_page(self, accept: str) -> Answer:
        if self.metrics is None:
            return plain(HTTPStatus.NOT_IMPLEMENTED, "pip install 'celery-singleton-lock[metrics]'\n")
        from .metrics.exposition import SingletonCollector, page

        content_type, body = page(SingletonCollector(self._rows), accept)
        return Answer(HTTPStatus.OK, content_type, body)

    def _rows(self) -> Rows:
        """What was counted, and what only a look can tell."""
        assert self.metrics is not None  # nosec B101 # noqa: S101 - for the type checker
        rows = self.metrics.counts.read() | self._looks.rows()
        rows[all_.READY.name, (), ""] = float(not self.health.why_not_ready())
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
