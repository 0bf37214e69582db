"""How far the entries are: read from the store, begun there, and put back when it forgot."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from celery_singleton_lock.core.clock import Clock
from celery_singleton_lock.core.models import Done, Granted, LeaseRequest, Release
from celery_singleton_lock.leases import LeaseStore

from .entries import PlannedEntry
from .membership import HEARTBEAT, Company
from .plan import as_position, as_slot

POSITION_KEPT_FOR: Final = timedelta(days=400)
"""Longer than the year of a yearly entry."""
UNKNOWN_WAIT_FOR: Final = 2 * HEARTBEAT
_READ_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class Reading:
    """Entries that were looked up; and which of them for the first time, with the mark of the
    definition by which they were published last."""

    entries: Sequence[PlannedEntry]
    first: Sequence[tuple[PlannedEntry, str | None]]


class Positions:
    """Reads the positions of entries that were `want`-ed, in a few calls."""

    def __init__(self, store: LeaseStore, company: Company, slot_ttl: timedelta, clock: Clock) -> None:
        self._store = store
        self._company = company
        self._slot_ttl = slot_ttl
        self._clock = clock
        self._unread: list[PlannedEntry] = []
        self._unknown: list[PlannedEntry] = []
        self._begin_at = 0.0

    def want(self, entries: Iterable[PlannedEntry]) -> None:
        self._unread.extend(entries)

    def forget(self) -> None:
        """Nothing of what was wanted is wanted any more."""
        self._unread, self._unknown = [], []

    def read(self) -> Reading:
        """The next part of what is wanted; nothing, when all is read."""
        if self._unknown and self._clock() >= self._begin_at:
            self._unread += self._unknown
            self._unknown = []
        part = self._unread[:_READ_AT_ONCE]
        records = self._store.peek([entry.key for entry in part])
        first = [
            (entry, record.outcome)
            for entry, record in zip(part, records, strict=True)
            if record is not None and entry.position is None
        ]
        to_record, unknown = [], []
        for entry, record in zip(part, records, strict=True):
            recorded = as_slot(record.position) if record and record.position is not None else None
            known = max(filter(None, (recorded, entry.position, entry.begins)), default=None)
            if known is None and entry.first_seen is None:
                unknown.append(entry)
            elif (
                known is None
                or (entry.position is not None and (recorded is None or recorded < entry.position))
                # A replica that starts later may not know that it was resumed, and when.
                or (entry.begins is not None and recorded is not None and recorded < entry.begins)
            ):
                to_record.append(entry)
            entry.position = known or entry.first_seen
        self._record(to_record)
        self._wait_for_news_of(unknown)
        del self._unread[: len(part)]
        return Reading(part, first)

    def _wait_for_news_of(self, unknown: Sequence[PlannedEntry]) -> None:
        """An entry that nobody ever saw begins now: no past is invented, and no later slot is lost.

        It is recorded a little later, though. Should the store have lost its memory, and we be the
        first to look, then the others, who know better, have put back what they know by then.
        """
        if unknown:
            now = self._company.now()
            for entry in unknown:
                entry.first_seen = now
            self._unknown.extend(unknown)
            self._begin_at = self._clock() + UNKNOWN_WAIT_FOR.total_seconds()

    def _record(self, entries: Sequence[PlannedEntry]) -> None:
        """Tell the store positions that it does not have."""
        positions = [as_position(entry.position) for entry in entries if entry.position]
        answers = self._store.acquire(
            [self.request(entry, position) for entry, position in zip(entries, positions, strict=True)]
        )
        recordings = []
        for entry, position, answer in zip(entries, positions, answers, strict=True):
            if isinstance(answer, Done):
                entry.position = as_slot(answer.position)
            elif isinstance(answer, Granted):
                recordings.append(recording(entry, answer, position))
        self._store.release(recordings)

    def request(self, entry: PlannedEntry, position: int) -> LeaseRequest:
        """Asks for the right to bring `entry` to `position`."""
        name = self._company.name
        return LeaseRequest(entry.key, name, self._slot_ttl, position=position, note={"beat": name})


def recording(entry: PlannedEntry, granted: Granted, position: int) -> Release:
    """Gives the lease of `entry` back, done up to `position`."""
    return Release(
        granted.lease,
        position=position,
        outcome=entry.mark or None,
        keep_for=POSITION_KEPT_FOR,
    )
