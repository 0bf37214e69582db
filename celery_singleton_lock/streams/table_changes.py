"""Changes in a table of the user's: processed in the transaction that also marks them as processed."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from celery_singleton_lock.core.errors import ConfigurationError, LeaseLost
from celery_singleton_lock.core.models import Lease
from celery_singleton_lock.ledger.stream_tables import StreamShardRow

from .stream import Batch, Changes, Handler

BUCKETS: Final = 2**31


def bucket_of(key: str) -> int:
    """A whole number for a key that is a text, the same everywhere: for the column that `key` names."""
    return zlib.crc32(key.encode()) % BUCKETS


class TableChanges(Changes):
    """`table` has a primary key that grows, an integer column `key` that says what a change is about,
    and a nullable column `done`: changes with NULL there are pending. Without `done` what is processed
    is deleted. Changes of one key are processed in the order of the primary key.

    The table ``singleton_stream_shards`` has to be in the same database: see `streams.add_tables`.
    """

    def __init__(self, engine: sa.Engine, table: Any, *, key: str, done: str | None = None) -> None:
        self._engine = engine
        self._table: sa.Table = getattr(table, "__table__", table)
        self._id = self._only_primary_key()
        self._key = self._column("key", key)
        self._done = None if done is None else self._column("done", done)
        if not isinstance(self._key.type, sa.Integer):
            raise ConfigurationError(
                f"{self._key} is no integer: keep bucket_of(text) in a column, and name that as key"
            )

    def shards(self) -> int:
        with self._engine.connect() as connection:
            found = self._recorded(connection)
        return found or self._record_first()

    def process(self, shard: int, lease: Lease, handle: Handler, most: int) -> int:
        with self._engine.begin() as connection:
            # First of all: until we commit, a newer holder waits here, and then sees what we did.
            self._show_fence(connection, shard, lease)
            shards = self._recorded(connection)
            query = sa.select(self._table).where(self._is_pending(), self._key % shards == shard)
            rows = connection.execute(query.order_by(self._id).limit(most)).all()
            if rows:
                handle(Batch(rows, connection, lease))
                self._mark(connection, [row._mapping[self._id] for row in rows])
            return len(rows)

    def change_shards(self, shards: int, leases: Sequence[Lease]) -> None:
        # A holder of before that wakes up late finds its row gone, or with a larger fence.
        with self._engine.begin() as connection:
            connection.execute(sa.delete(StreamShardRow).where(self._ours()))
            rows = [self._row(shard, leases[shard].fence) for shard in range(shards)]
            connection.execute(sa.insert(StreamShardRow), rows)

    def pending(self) -> int:
        with self._engine.connect() as connection:
            query = sa.select(sa.func.count()).select_from(self._table).where(self._is_pending())
            return int(connection.scalar(query) or 0)

    def _show_fence(self, connection: sa.Connection, shard: int, lease: Lease) -> None:
        shown = connection.execute(
            sa.update(StreamShardRow)
            .where(self._ours(), StreamShardRow.shard == shard, StreamShardRow.fence <= lease.fence)
            .values(fence=lease.fence)
        )
        if shown.rowcount != 1:
            raise LeaseLost(lease.key, lease.fence)

    def _recorded(self, connection: sa.Connection) -> int:
        query = sa.select(sa.func.count()).select_from(StreamShardRow).where(self._ours())
        return int(connection.scalar(query) or 0)

    def _record_first(self) -> int:
        """All in one transaction: of two who do it at once, one does nothing."""
        try:
            with self._engine.begin() as connection:
                rows = [self._row(shard, 0) for shard in range(self.first_shards)]
                connection.execute(sa.insert(StreamShardRow), rows)
        except IntegrityError:
            pass
        with self._engine.connect() as connection:
            return self._recorded(connection)

    def _row(self, shard: int, fence: int) -> dict[str, Any]:
        return {"prefix": self.prefix, "name": self.name, "shard": shard, "fence": fence}

    def _ours(self) -> sa.ColumnElement[bool]:
        return sa.and_(StreamShardRow.prefix == self.prefix, StreamShardRow.name == self.name)

    def _is_pending(self) -> sa.ColumnElement[bool]:
        return sa.true() if self._done is None else self._done.is_(None)

    def _mark(self, connection: sa.Connection, ids: Sequence[Any]) -> None:
        those = self._id.in_(ids)
        if self._done is None:
            connection.execute(sa.delete(self._table).where(those))
            return
        value: Any = True if self._done.type.python_type is bool else datetime.now(UTC)
        connection.execute(sa.update(self._table).where(those).values({self._done: value}))

    def _only_primary_key(self) -> sa.Column[Any]:
        columns = list(self._table.primary_key.columns)
        if len(columns) != 1:
            raise ConfigurationError(
                f"{self._table.name} needs a primary key of one column, that grows"
            )
        return columns[0]

    def _column(self, what: str, name: str) -> sa.Column[Any]:
        if name not in self._table.c:
            known = ", ".join(self._table.c.keys())
            raise ConfigurationError(f"{what}={name!r}: {self._table.name} has the columns {known}")
        return self._table.c[name]
