"""One look at everything: what is read from the store and the broker, and how often."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Generic, TypeVar

from celery_singleton_lock.beat.entry_state import EntryState
from celery_singleton_lock.bootstrap import open_schedule
from celery_singleton_lock.cli.scheduling.telling import facts_of
from celery_singleton_lock.cli.times import iso
from celery_singleton_lock.core.errors import SingletonError
from celery_singleton_lock.core.models import Record
from celery_singleton_lock.core.redaction import redact_all
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.locks import Lock, locks_in
from celery_singleton_lock.worker.parts import parts_of

T = TypeVar("T")

REST: Final = 4
"""A background look rests for this many times as long as it took: watching is never a load."""
SHORTEST_REST: Final = 1.0
ENDED_ASKED: Final = 50
"""Of how many runs that ended since the last look the outcome is asked for."""


@dataclass(frozen=True, slots=True)
class Look:
    app: str
    store: str
    now: datetime
    members: Sequence[str]
    entries: Sequence[EntryState]
    jobs: int
    locks: Sequence[Lock]
    letters: int | None
    """None: they could not be counted."""
    outcome_of: Callable[[Sequence[str]], Sequence[Record | None]] = field(repr=False)

    @property
    def facts(self) -> dict[str, Any]:
        """For JSON: keys may be added, and none is renamed."""
        return {
            "app": self.app,
            "store": self.store,
            "now": iso(self.now),
            "replicas": list(self.members),
            "entries": [facts_of(entry) for entry in self.entries],
            "jobs": self.jobs,
            "locks": [lock.facts for lock in self.locks],
            "dead_letters": self.letters,
        }


class Lookout:
    """Entries and members are read at each look, in a few round trips. What may take longer, all locks
    and the count of letters, is read in threads, each at its own pace."""

    def __init__(self, app: Any) -> None:
        self._app = app
        settings = parts_of(app).settings
        self._store: LeaseStore = parts_of(app).store
        self._name = redact_all(settings.lock_url)
        self._schedule = open_schedule(app)
        self._locks: Background[Sequence[Lock]] = Background(self._read_locks)
        self._letters: Background[int] = Background(dead_letters_of(app).count)

    def __enter__(self) -> Lookout:
        return self

    def __exit__(self, *_: object) -> None:
        self._locks.stop()
        self._letters.stop()

    def look_once(self) -> Look:
        """All of it, now. Raises `StoreUnavailable`."""
        try:
            letters: int | None = dead_letters_of(self._app).count()
        except SingletonError:
            letters = None
        return self._look(self._read_locks(), letters)

    def look(self) -> Look:
        """With what the threads have found last."""
        return self._look(self._locks.latest or (), self._letters.latest)

    def _look(self, locks: Sequence[Lock], letters: int | None) -> Look:
        return Look(
            self._app.main or "",
            self._name,
            self._store.now(),
            self._schedule.replicas(),
            self._schedule.entries(),
            len(self._schedule.jobs()),
            locks,
            letters,
            lambda keys: self._store.peek(list(keys)[:ENDED_ASKED]),
        )

    def _read_locks(self) -> Sequence[Lock]:
        kinds = ("run", "lock", "task")
        found = [lock for lock in locks_in(self._store) if lock.kind in kinds]
        # A run has a lock of its own beside that of its job: one line is enough.
        runs = {lock.note.get("run") for lock in found if lock.kind == "run"}
        shown = [lock for lock in found if lock.kind != "task" or lock.note.get("run") not in runs]
        return sorted(shown, key=lambda lock: (lock.since, lock.key))


class Background(Generic[T]):
    """Reads again and again in a thread of its own, which begins with the first question."""

    def __init__(self, read: Callable[[], T]) -> None:
        self._read = read
        self._latest: T | None = None
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    @property
    def latest(self) -> T | None:
        """None: not read yet, or not to be read now."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="singleton-watch", daemon=True)
            self._thread.start()
        return self._latest

    def stop(self) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._latest = self._read()
            except SingletonError:
                self._latest = None
            self._stopping.wait(max(SHORTEST_REST, REST * (time.monotonic() - began)))
