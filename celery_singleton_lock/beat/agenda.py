"""Which entry is to be looked at next. No I/O, and no clock."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from datetime import datetime

from .entries import PlannedEntry
from .plan import delay_of


class Agenda:
    """A heap over slots: the cost of a look grows with what is due, not with the schedule."""

    def __init__(self) -> None:
        self._heap: list[tuple[datetime, int, PlannedEntry]] = []
        self._tickets = 0

    @property
    def first(self) -> datetime | None:
        """When something may be due; None: nothing ever will."""
        return self._heap[0][0] if self._heap else None

    def put(self, entry: PlannedEntry, *, not_before: datetime | None = None) -> None:
        """Look at `entry` when its next slot is due. What was put before is forgotten."""
        if entry.position is not None:
            self.put_slot(entry, entry.grid.next(entry.position), not_before=not_before)

    def put_slot(
        self, entry: PlannedEntry, slot: datetime | None, *, not_before: datetime | None = None
    ) -> None:
        """`put` with the next slot, where that is known already."""
        self.drop(entry)
        entry.next_slot = slot
        if slot is None or not entry.is_active:
            return
        due_at = slot + delay_of(entry.key, entry.grid, slot, entry.jitter)
        look_at = max(due_at, not_before) if not_before else due_at
        self._tickets += 1
        entry.ticket = self._tickets
        heapq.heappush(self._heap, (look_at, entry.ticket, entry))

    def drop(self, entry: PlannedEntry) -> None:
        """Look at `entry` no more."""
        entry.ticket = 0

    def pop(self, now: datetime) -> Iterator[tuple[PlannedEntry, datetime, datetime]]:
        """Take out what is due: entries, with their slot and since when they are to be looked at."""
        while self._heap and self._heap[0][0] <= now:
            look_at, ticket, entry = heapq.heappop(self._heap)
            if ticket == entry.ticket and entry.next_slot is not None:
                yield entry, entry.next_slot, look_at
