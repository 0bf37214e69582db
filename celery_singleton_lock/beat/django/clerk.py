"""The one thread that talks to Django's database: publishing never waits for it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime
from threading import Event, Thread
from typing import Any, Final

from django.db import connections

from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.redaction import redact

from .books import Books
from .row import RowEntry

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
READ_ALL_EVERY_S: Final = 60.0
"""For changes that do not announce themselves: ``QuerySet.update``, SQL by hand."""
LAST_WORDS_S: Final = 3.0


class Clerk:
    """`prepare` is done once, then `read` whenever `last_change` has changed.

    While the database is away `entries` stays what it was, and what is to be written is kept.
    """

    def __init__(
        self,
        books: Books,
        *,
        prepare: Callable[[], None],
        last_change: Callable[[], Any],
        read: Callable[[], list[Any]],
        make: Callable[[Any], RowEntry],
    ) -> None:
        self.entries: Mapping[str, RowEntry] = {}
        """A new mapping whenever something in it is new."""
        self._books = books
        self._prepare = prepare
        self._last_change = last_change
        self._read = read
        self._make = make
        # Appending to a deque takes no lock: it may be interrupted by the signal handler that stops us.
        self._ran: deque[tuple[Any, datetime]] = deque()
        self._over: deque[RowEntry] = deque()
        self._is_prepared = False
        self._seen_change: Any = None
        self._looked_at: float | None = None
        self._read_at = float("-inf")
        self._unreadable: dict[Any, str] = {}
        self._is_in_trouble = False
        self._ending = Event()
        self._thread: Thread | None = None

    def start(self) -> None:
        self._thread = Thread(target=self._work, name="celery-singleton-lock-django", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write what is left, but do not wait for long. May be called twice."""
        thread, self._thread = self._thread, None
        self._ending.set()
        if thread is not None:
            thread.join(LAST_WORDS_S)

    def note_run(self, entry: RowEntry, slot: datetime) -> None:
        self._ran.append((entry.model.pk, slot))

    def note_end(self, entry: RowEntry) -> None:
        self._over.append(entry)

    def _work(self) -> None:
        while not self._ending.wait(LOOK_EVERY_S if self._looked_at or self._is_in_trouble else 0):
            self._try(self._look)
        # To write nothing proves nothing.
        self._try(self._write, is_proof=self._has_to_write)
        connections.close_all()

    @property
    def _has_to_write(self) -> bool:
        return bool(self._ran or self._over or self._books.ran or self._books.over)

    def _try(self, work: Callable[[], object], *, is_proof: bool = True) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next look may go well
            # A connection that failed once is not used again.
            connections.close_all()
            if not self._is_in_trouble:
                reason = redact(f"{type(error).__name__}: {error}")
                logger.warning("django_database_trouble_began reason=%s", reason)
            self._is_in_trouble = True
        else:
            if self._is_in_trouble and is_proof:
                logger.warning("django_database_trouble_ended")
                self._is_in_trouble = False

    def _look(self) -> None:
        """Read before writing: a database that refuses to be written can still be followed."""
        if not self._is_prepared:
            self._prepare()
            self._is_prepared = True
        self._follow()
        self._write()

    def _write(self) -> None:
        while self._ran:
            self._books.add(*self._ran.popleft())
        while self._over:
            entry = self._over.popleft()
            self._books.over[entry.name] = entry
        self._books.write()

    def _follow(self) -> None:
        began = boottime()
        # Asked for before the rows are read: what is changed in between is read once more.
        change = self._last_change()
        if change != self._seen_change or began - self._read_at >= READ_ALL_EVERY_S:
            self._take_in(self._read())
            self._seen_change, self._read_at = change, began
        self._looked_at = began

    def _take_in(self, models: list[Any]) -> None:
        known = self.entries
        entries = {entry.name: entry for model in models for entry in self._entries_of(model)}
        if entries.keys() != known.keys() or any(entries[name] is not known[name] for name in known):
            logger.info("django_schedule_read entries=%d", len(entries))
            self.entries = entries

    def _entries_of(self, model: Any) -> list[RowEntry]:
        """None where it cannot be understood: the others should not suffer for it."""
        try:
            entry = self._make(model)
        except Exception as error:  # noqa: BLE001 - rows are made by people, and checked by forms only
            self._tell_unreadable(model, f"{type(error).__name__}: {error}")
            return []
        self._unreadable.pop(model.pk, None)
        return [self._as_known(entry)]

    def _as_known(self, entry: RowEntry) -> RowEntry:
        known = self.entries.get(entry.name)
        if known is not None and known.version == entry.version:
            return known
        if not entry.is_once:
            if known is not None and known.when == entry.when:
                entry.begins, entry.unseen_since = known.begins, known.unseen_since
            else:
                entry.unseen_since = self._looked_at
        return entry

    def _tell_unreadable(self, model: Any, reason: str) -> None:
        if self._unreadable.get(model.pk) != reason:
            logger.warning("django_row_not_understood entry=%r reason=%s", model.name, reason)
        self._unreadable[model.pk] = reason
