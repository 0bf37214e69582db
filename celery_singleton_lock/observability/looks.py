"""Numbers that nobody counts as things happen: only a look at the store, the broker or the database
tells them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.core.errors import SingletonError, StoreUnavailable
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.settings import Settings

from .health import Remembered
from .metrics import catalogue as all_

if TYPE_CHECKING:
    from .metrics.counts import Rows

App = Any  # Celery ships no types.

_NOTHING: Final = timedelta(0)
STORE_FOR_S: Final = 1.0
LETTERS_FOR_S: Final = 15.0
OUTBOX_FOR_S: Final = 15.0


class Looks:
    """Each is taken once in a while, however often it is asked for."""

    def __init__(self, app: App, settings: Settings, store: LeaseStore) -> None:
        self._app = app
        self._settings = settings
        self._store = store
        self._group = beat_group(app.main or "")
        self._beats = Remembered(self._count_beats, STORE_FOR_S)
        self._letters = Remembered(self._count_letters, LETTERS_FOR_S)
        self._outbox = Remembered(self._look_into_outbox, OUTBOX_FOR_S)

    def why_no_store(self) -> str | None:
        beats = self._beats()
        return beats if isinstance(beats, str) else None

    def rows(self) -> Rows:
        """What cannot be told now is left out."""
        rows: Rows = {}
        for metric, value in ((all_.MEMBERS, self._beats()), (all_.DEAD_LETTERS, self._letters())):
            if isinstance(value, int):
                rows[metric.name, (), ""] = float(value)
        waiting = self._outbox()
        if waiting:
            rows[all_.OUTBOX_OLDEST.name, (), ""] = waiting["oldest_seconds"] or 0.0
            for state in ("pending", "held", "dead"):
                rows[all_.OUTBOX.name, (state,), ""] = float(waiting[state] or 0)
        return rows

    def _count_beats(self) -> int | str:
        """How many are alive; a text: why the store cannot tell."""
        try:
            meeting = self._store.meet(self._group, "", _NOTHING)
        except StoreUnavailable as error:
            return f"the lease store is away: {error.reason}"
        return len(meeting.members)

    def _count_letters(self) -> int | None:
        try:
            return dead_letters_of(self._app).count()
        except SingletonError:
            return None

    def _look_into_outbox(self) -> Mapping[str, float | None]:
        """Nothing where there is no outbox, or its database does not answer."""
        if self._settings.outbox_database is None:
            return {}
        from celery_singleton_lock.recovery.outbox.reading import Outbox

        outbox = Outbox(self._settings)
        try:
            return outbox.status().facts
        except SingletonError:
            return {}
        finally:
            outbox.close()
