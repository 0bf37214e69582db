"""Shows the schedule in the ledger: a table of the entries, and runs that are due and not published.

Nothing rests on it. One replica at a time does it, that which started last, as it is its definition of
the entries that counts; from what it knows anyhow, in a thread of its own.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Final, Protocol

from celery_singleton_lock.core.errors import LedgerUnavailable
from celery_singleton_lock.core.facts import Listeners, RunName, SlotsDue
from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.due_runs import forget_due
from celery_singleton_lock.ledger.schedule_table import ScheduledEntry, ScheduleTable

from .book import Paused
from .entries import PlannedEntry
from .plan import run_id, slots_between

logger = logging.getLogger(__name__)

LATE: Final = timedelta(seconds=5)
"""Sooner a slot is not shown as due: most are published within a moment."""
_LONGEST_GOODBYE_S: Final = 2.0
_MICROSECOND: Final = timedelta(microseconds=1)
MOST_DUE: Final = 100
"""Slots of an entry: who has more to catch up sees enough by these."""


class Knows(Protocol):
    """A replica of beat: `Engine`."""

    @property
    def now(self) -> datetime | None: ...

    @property
    def is_newest(self) -> bool: ...

    @property
    def revision(self) -> int: ...

    def entries(self) -> list[tuple[PlannedEntry, Paused | None]]: ...


class Showing:
    """`start` has it look now and then, until `stop`."""

    EVERY_S = 30.0
    LOOK_UP_S = 1.0
    READ_EVERY = 10
    """Looks: somebody else may have written who should not have, so the table is read anew."""
    SHARE = 50
    """A look that takes long is not followed by another before so many times its length."""

    def __init__(
        self,
        ledger: Ledger,
        listeners: Listeners,
        *,
        app_name: str,
        replica: str,
        engine: Knows,
        entry_of: Callable[[str], Any],
    ) -> None:
        """`entry_of` raises KeyError for one that is gone."""
        self._ledger = ledger
        self._listeners = listeners
        self._app_name = app_name
        self._replica = replica
        self._engine = engine
        self._entry_of = entry_of
        self._table = ScheduleTable(ledger, app_name)
        self._told: dict[str, datetime] = {}
        """Up to which slot an entry was told to be due."""
        self._over: set[tuple[str, datetime]] = set()
        """Runs that were due, and were not any more when it looked last."""
        self._seen_revision = -1
        self._next_look = 0.0
        self._stopped = threading.Event()
        self._in_trouble = False

        self._looks = 0
        self._thread = threading.Thread(target=self._run, name="singleton-schedule", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let it end its look, if that takes no longer than a moment: another replica is to follow."""
        self._stopped.set()
        self._thread.join(_LONGEST_GOODBYE_S)

    def _run(self) -> None:
        not_before = 0.0
        while not self._stopped.wait(self.LOOK_UP_S):
            if time.monotonic() < not_before:
                continue
            began = time.monotonic()
            try:
                self.look_if_due()
                self._say(None)
            except LedgerUnavailable as error:
                self._say(error)
            except Exception:
                # This thread's death would go unseen.
                logger.exception("schedule_not_shown")
            not_before = time.monotonic() + self.SHARE * (time.monotonic() - began)

    def look_if_due(self) -> None:
        """Look if it is time to, or if somebody has said something. Raises `LedgerUnavailable`."""
        now, revision = self._engine.now, self._engine.revision
        if now is None or not self._engine.is_newest:
            # Another shows it. It may have changed by the time that it is ours.
            self._table.look_anew()
            self._next_look = 0.0
        elif revision != self._seen_revision or time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self.EVERY_S
            self._look(now)
            self._seen_revision = revision

    def _look(self, now: datetime) -> None:
        if self._looks % self.READ_EVERY == 0:
            self._table.look_anew()
        self._looks += 1
        entries = self._engine.entries()
        self._tell_due([entry for entry, _ in entries], now)
        known = self._table.show(self._shown(entries))
        due_from = {entry.name: entry.next_slot for entry, _ in entries if _is_late(entry, now)}
        over: set[tuple[str, datetime]] = set()

        def is_over(name: str, slot: datetime) -> bool:
            first = due_from.get(name)
            # Entries that were never ours are another app's, of the same database and prefix.
            if name in known and (first is None or slot < first):
                over.add((name, slot))
            # Not at once: that it was published is on its way into history.
            return (name, slot) in over & self._over

        forget_due(self._ledger, is_over)
        self._over = over

    def _shown(self, entries: Iterable[tuple[PlannedEntry, Paused | None]]) -> Iterator[ScheduledEntry]:
        for planned, pause in entries:
            try:
                entry = self._entry_of(planned.name)
            except KeyError:
                continue
            yield ScheduledEntry(
                entry=planned.name,
                task=entry.task,
                schedule=repr(entry.schedule),
                is_added=not planned.mark,
                is_paused=planned.is_paused,
                paused_by=pause.by if pause and planned.is_paused else None,
                paused_why=pause.why if pause and planned.is_paused else None,
                last_slot=planned.position,
                next_slot=None if planned.is_paused else planned.next_slot,
            )

    def _tell_due(self, entries: Iterable[PlannedEntry], now: datetime) -> None:
        runs: list[RunName] = []
        for planned in entries:
            if not _is_late(planned, now) or planned.next_slot is None:
                self._told.pop(planned.name, None)
                continue
            before = planned.next_slot - _MICROSECOND
            before = max(before, self._told.get(planned.name, before))
            slots, _ = slots_between(planned.grid, before, now - LATE, MOST_DUE)
            if slots:
                self._told[planned.name] = slots[-1]
                runs += self._names(planned.name, slots)
        if runs and self._listeners:
            self._listeners.tell(SlotsDue(at=now, runs=tuple(runs), replica=self._replica))

    def _names(self, name: str, slots: Iterable[datetime]) -> Iterator[RunName]:
        try:
            task = self._entry_of(name).task
        except KeyError:
            return
        for slot in slots:
            yield RunName(run_id(self._app_name, name, slot), task, name, slot)

    def _say(self, error: LedgerUnavailable | None) -> None:
        if error is not None and not self._in_trouble:
            logger.warning("schedule_not_shown reason=%s", error)
        self._in_trouble = error is not None


def _is_late(planned: PlannedEntry, now: datetime) -> bool:
    """Whether its next slot should have been published some time ago."""
    slot = planned.next_slot
    return planned.is_active and slot is not None and slot + planned.jitter + LATE <= now
