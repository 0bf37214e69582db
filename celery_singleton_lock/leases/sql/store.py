"""Leases in a SQL database: one row a key, decided in Python while the rows are locked.

A call is one short transaction: lock the rows in the order of their digests, apply the rules, write
what changed. A key that is new is inserted; should somebody else insert it first, the transaction is
tried again. No lock is held between calls, and all time is the database's.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from celery_singleton_lock.core.clock import Clock, boottime
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Record, Release
from celery_singleton_lock.databases import Database, reason_of
from celery_singleton_lock.leases import books, rules
from celery_singleton_lock.leases.base import DEFAULT_PREFIX, DEFAULT_TIMEOUT
from celery_singleton_lock.leases.ruled import Item, Reply, RuledLeaseStore

from .tables import leases

_PAGE: Final = 500
_PURGE_EVERY: Final = 60.0
_KEY: Final = ("digest",)
_ROW_FIELDS: Final = tuple(rules.Row.__dataclass_fields__)


class SqlLeaseStore(RuledLeaseStore):
    """The table is created when it is missing."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: timedelta = DEFAULT_TIMEOUT,
        clock: Clock = boottime,
    ) -> None:
        super().__init__(clock=clock)
        self._database = Database(url, timeout)
        self._dialect = self._database.dialect
        self._prefix = prefix
        self._timeout = timeout
        self._next_purge = 0.0
        self._table_is_there = False

    @property
    def name(self) -> str:
        return self._database.name

    def close(self) -> None:
        self._database.close()

    # Calls

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        written = super()._release(releases)
        self._purge_sometimes()
        return written

    def _scan(self, prefix: str) -> Iterator[Record]:
        last = ""
        while True:
            now, page = self._transact(partial(self._page, prefix=prefix, after=last))
            for row in page:
                # LIKE does not tell upper case from lower in every database.
                if row.key.startswith(prefix) and row.kept_until > now:
                    yield rules.record(row.key, _row(row), now)
            if len(page) < _PAGE:
                return
            last = page[-1].digest

    def _expired(self, at_most: int) -> list[Record]:
        return self._transact(partial(self._expired_rows, at_most=at_most))

    def _expired_rows(self, connection: sa.Connection, *, at_most: int) -> list[Record]:
        now = self._dialect.now(connection)
        query = (
            sa.select(leases)
            .where(
                leases.c.prefix == self._prefix,
                leases.c.listed.between(1, now),
                leases.c.kept_until > now,
            )
            .order_by(leases.c.listed)
            .limit(at_most)
        )
        return [rules.record(row.key, _row(row), now) for row in connection.execute(query)]

    def _page(
        self, connection: sa.Connection, *, prefix: str, after: str
    ) -> tuple[int, Sequence[sa.Row[Any]]]:
        query = (
            sa.select(leases)
            .where(
                leases.c.prefix == self._prefix,
                leases.c.fence > 0,
                leases.c.digest > after,
                leases.c.key.startswith(prefix, autoescape=True),
            )
            .order_by(leases.c.digest)
            .limit(_PAGE)
        )
        return self._dialect.now(connection), connection.execute(query).all()

    # Ways and means

    def _apply(self, rule: rules.Rule[Item, Reply], items: Sequence[tuple[str, Item]]) -> list[Reply]:
        named = [(self._digest(key), key, item) for key, item in items]
        lock = rule not in (rules.peek, books.read)

        def decide(connection: sa.Connection) -> list[Reply]:
            rows = self._rows(connection, sorted({digest for digest, _, _ in named}), lock=lock)
            now = self._dialect.now(connection)
            changed: dict[str, _Change] = {}
            known = frozenset(rows)
            replies = []
            for digest, key, item in named:
                before = rows.get(digest, rules.BLANK)
                if before.kept_until <= now:
                    before = rules.BLANK
                after, reply = rule(before, item, now)
                if after is not before:
                    rows[digest] = after
                    changed[digest] = _Change(digest, key, after, is_new=digest not in known)
                replies.append(reply)
            self._write(connection, [changed[digest] for digest in sorted(changed)])
            return replies

        return self._transact(decide)

    def _rows(
        self, connection: sa.Connection, digests: Sequence[str], *, lock: bool
    ) -> dict[str, rules.Row]:
        found = {}
        for start in range(0, len(digests), _PAGE):
            query = (
                sa.select(leases)
                .where(leases.c.digest.in_(digests[start : start + _PAGE]))
                .order_by(leases.c.digest)
            )
            for row in connection.execute(query.with_for_update() if lock else query):
                found[row.digest] = _row(row)
        return found

    def _write(self, connection: sa.Connection, changes: Sequence[_Change]) -> None:
        # An insert that fails tells us that somebody else made the row since we looked.
        for statement, part in (
            (leases.insert(), [change for change in changes if change.is_new]),
            (self._dialect.upsert(leases, _KEY), [change for change in changes if not change.is_new]),
        ):
            if part:
                connection.execute(statement, [self._columns(change) for change in part])

    def _columns(self, change: _Change) -> dict[str, object]:
        fields = {name: getattr(change.row, name) for name in _ROW_FIELDS}
        key = change.key.removeprefix("\0")  # which PostgreSQL cannot keep in a text
        return fields | {"digest": change.digest, "prefix": self._prefix, "key": key}

    def _digest(self, key: str) -> str:
        return hashlib.sha256(f"{self._prefix}\0{key}".encode()).hexdigest()

    def _transact(self, work: Callable[[sa.Connection], Reply]) -> Reply:
        give_up_at = time.monotonic() + self._timeout.total_seconds()
        reconnected = False
        while True:
            try:
                with self._usable_engine().begin() as connection:
                    return work(connection)
            except DBAPIError as error:
                stale = error.connection_invalidated and not reconnected
                reconnected = reconnected or stale
                passing = stale or self._dialect.is_transient(error)
                if not passing or time.monotonic() > give_up_at:
                    self._table_is_there = False
                    raise self._unavailable(error) from error
                time.sleep(random.uniform(0.001, 0.01))  # nosec B311 # noqa: S311 - jitter, not a secret
            except (SQLAlchemyError, OSError) as error:
                raise self._unavailable(error) from error

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(self.name, reason_of(error))

    def _usable_engine(self) -> sa.Engine:
        engine = self._database.engine
        if not self._table_is_there:
            # Two of us may create it at once: the second one's error is a success.
            try:
                leases.create(engine, checkfirst=True)
            except DBAPIError:
                if not sa.inspect(engine).has_table(leases.name):
                    raise
            self._table_is_there = True
        return engine

    def _purge_sometimes(self) -> None:
        if self._clock() < self._next_purge:
            return
        self._next_purge = self._clock() + _PURGE_EVERY
        try:
            self._transact(self._purge)
        except StoreUnavailable:
            # Old rows do no harm; the next purge takes them.
            return

    def _purge(self, connection: sa.Connection) -> None:
        old = leases.c.kept_until <= self._dialect.now(connection)
        query = sa.select(leases.c.digest).where(old).order_by(leases.c.digest).limit(_PAGE)
        digests = connection.scalars(query).all()
        if digests:
            connection.execute(leases.delete().where(leases.c.digest.in_(digests), old))


@dataclass(frozen=True, slots=True)
class _Change:
    digest: str
    key: str
    row: rules.Row
    is_new: bool


def _row(found: sa.Row[Any]) -> rules.Row:
    return rules.Row(**{name: getattr(found, name) for name in _ROW_FIELDS})
