"""What replicas write into the rows: that they ran, and that they are over. No thread, no retry."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.db.models import Case, F, Q, Value, When
from django.utils import timezone

from .row import RowEntry, as_django, as_utc

_ROWS_AT_ONCE: Final = 400
"""Less than the 999 variables of an old SQLite."""
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Ran:
    """How often a row was published, and for which slot last."""

    times: int
    last: datetime

    def and_at(self, slot: datetime) -> Ran:
        return Ran(self.times + 1, max(self.last, slot))


class Books:
    """Not yet written: `ran`, by the primary key of the row, and `over`, by the entry's name."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.ran: dict[Any, Ran] = {}
        self.over: dict[str, RowEntry] = {}

    def add(self, row: Any, slot: datetime) -> None:
        ran = self.ran.get(row)
        self.ran[row] = ran.and_at(slot) if ran else Ran(1, slot)

    def write(self) -> None:
        """Write all. What was written is forgotten, also when the rest could not be."""
        self._write_runs()
        self._write_ends()

    def _write_runs(self) -> None:
        alike: dict[Ran, list[Any]] = defaultdict(list)
        for row, ran in self.ran.items():
            alike[ran].append(row)
        for ran, rows in alike.items():
            # In one order everywhere: two replicas that wait for each other's rows would be a deadlock.
            for part in _parts(sorted(rows)):
                self._write_run(ran, part)
                for row in part:
                    del self.ran[row]

    def _write_run(self, ran: Ran, rows: Sequence[Any]) -> None:
        last = as_django(ran.last)
        # Several replicas publish slots of one entry: each adds its own, and none turns back the time.
        self._model._default_manager.filter(pk__in=rows).update(
            total_run_count=F("total_run_count") + ran.times,
            last_run_at=Case(
                When(Q(last_run_at__isnull=True) | Q(last_run_at__lt=last), then=Value(last)),
                default=F("last_run_at"),
            ),
        )

    def _write_ends(self) -> None:
        """Not announced as a change: every replica knows that it is over, and need not read all rows
        for that."""
        for name, entry in list(self.over.items()):
            row = entry.model
            # Only as it was when it ran: somebody may have given it a new time since.
            same = self._model._default_manager.filter(
                pk=row.pk, enabled=True, date_changed=row.date_changed
            )
            same.update(enabled=False, date_changed=_time_of_end(entry))
            del self.over[name]


def _time_of_end(entry: RowEntry) -> datetime:
    """Enabled anew, the row has its next slot after this: another one, with another id."""
    now = as_utc(timezone.now())
    ended = entry.slot + _MICROSECOND if entry.slot else now
    return as_django(max(filter(None, (now, ended))))


def _parts(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(rows), _ROWS_AT_ONCE):
        yield rows[start : start + _ROWS_AT_ONCE]
