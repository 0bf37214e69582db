"""The schedule in a table, beside history: a copy for those who ask in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final, TypeVar

import sqlalchemy as sa

from celery_singleton_lock.core.errors import LedgerUnavailable

from .happenings import cut
from .opening import Ledger
from .tables import ScheduleRow, metadata

T = TypeVar("T")

_SCHEDULE: Final = metadata.tables[ScheduleRow.__tablename__]
_KEY: Final = ("prefix", "app", "entry")
CHUNK: Final = 500
"""Rows a transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledEntry:
    """The page of the ledger explains each."""

    entry: str
    task: str
    schedule: str
    is_added: bool
    is_paused: bool
    paused_by: str | None = None
    paused_why: str | None = None
    last_slot: datetime | None = None
    next_slot: datetime | None = None


class ScheduleTable:
    """The entries of one app."""

    def __init__(self, ledger: Ledger, app: str) -> None:
        self._ledger = ledger
        self._app = cut(app)
        self._shown: dict[str, ScheduledEntry] | None = None
        """What the table says; None: that has to be read."""

    def read(self) -> list[ScheduledEntry]:
        """By name. Raises `LedgerUnavailable`."""
        names = [each.name for each in fields(ScheduledEntry)]
        query = (
            sa.select(*(_SCHEDULE.c[name] for name in names))
            .where(*self._ours())
            .order_by(_SCHEDULE.c.entry)
        )
        rows = self._ledger.read(lambda connection: connection.execute(query).mappings().all())
        return [ScheduledEntry(**row) for row in rows]

    def show(self, entries: Iterable[ScheduledEntry]) -> set[str]:
        """Have the table say this and nothing else; return the names of all entries that it knew or
        knows. Only what is different is written. Raises `LedgerUnavailable`."""
        wanted = {each.entry: each for each in map(_storable, entries)}
        try:
            shown = self._shown if self._shown is not None else {e.entry: e for e in self.read()}
            changed = [each for name, each in wanted.items() if shown.get(name) != each]
            self._write(changed)
            self._remove(sorted(shown.keys() - wanted.keys()))
        except LedgerUnavailable:
            self._shown = None
            raise
        self._shown = wanted
        return shown.keys() | wanted.keys()

    def look_anew(self) -> None:
        """Somebody else may have written since."""
        self._shown = None

    def _write(self, entries: Sequence[ScheduledEntry]) -> None:
        about = {"prefix": self._ledger.prefix, "app": self._app, "changed_at": datetime.now(UTC)}
        upsert = self._ledger.database.dialect.upsert(_SCHEDULE, _KEY)
        for part in _parts(entries):
            rows = [about | asdict(each) for each in part]
            self._ledger.write(partial(sa.Connection.execute, statement=upsert, parameters=rows))

    def _remove(self, names: Sequence[str]) -> None:
        for part in _parts(names):
            statement = sa.delete(_SCHEDULE).where(*self._ours(), _SCHEDULE.c.entry.in_(part))
            self._ledger.write(partial(sa.Connection.execute, statement=statement))

    def _ours(self) -> tuple[sa.ColumnElement[bool], ...]:
        return _SCHEDULE.c.prefix == self._ledger.prefix, _SCHEDULE.c.app == self._app


def _storable(entry: ScheduledEntry) -> ScheduledEntry:
    return replace(
        entry,
        entry=cut(entry.entry),
        task=cut(entry.task),
        paused_by=entry.paused_by and cut(entry.paused_by),
    )


def _parts(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(rows), CHUNK):
        yield rows[start : start + CHUNK]
