"""Takes lanes from the database, reads what is pending in them, and writes what became of it.

Where rows can be locked, a lane is a lock in the transaction that spans the publishing: a relay that
dies lets go at once. Elsewhere (SQLite, old servers) a lane is taken by raising its version, for a
time, and what became of the rows is written only if the version is still that.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased

from celery_singleton_lock.databases import Database
from celery_singleton_lock.ledger.outbox_tables import (
    DEAD,
    HELD,
    PENDING,
    PUBLISHED,
    OutboxLaneRow,
    OutboxRow,
)

from .lanes import LANES, LANES_AT_ONCE, Pending

logger = logging.getLogger(__name__)

BATCH: Final = 500
_PARTS: Final = {"headers", "properties", "exchange", "routing_key"}


@dataclass(frozen=True, slots=True)
class Held:
    """Not published, and to be tried again after `wait`; `tries` with this one."""

    row: Pending
    wait: timedelta
    tries: int
    error: str


@dataclass(slots=True)
class Outcome:
    """What became of rows."""

    published: list[Pending] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    dead: list[tuple[Pending, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Claim:
    """Rows that nobody else publishes now, in the order of their ids."""

    rows: Sequence[Pending]
    record: Callable[[Outcome], None]
    """Write down what became of them. They are done only when the claim was left without an error."""


class Claims(ABC):
    """The lanes of one application in one database."""

    def __init__(self, database: Database, prefix: str) -> None:
        self.database: Final = database
        self.prefix: Final = prefix
        self._last_lane = -1

    @abstractmethod
    def claim(self) -> AbstractContextManager[Claim | None]:
        """Some lanes with something to do; None: there is none, or others are at them."""

    def make_lanes(self) -> None:
        """They are there from now on; whoever else makes them at the same time is as good."""
        lanes = [{"prefix": self.prefix, "lane": lane, "version": 0} for lane in range(LANES)]
        with self.database.engine.begin() as connection:
            query = sa.select(OutboxLaneRow.lane).where(self._ours(OutboxLaneRow))
            found = set(connection.scalars(query))
        for lane in lanes:
            if lane["lane"] not in found:
                try:
                    with self.database.engine.begin() as connection:
                        connection.execute(sa.insert(OutboxLaneRow), [lane])
                except IntegrityError:
                    continue

    def seconds_to_retry(self) -> float | None:
        """Until something that was refused is tried again; None: nothing was."""
        with self.database.engine.begin() as connection:
            held = self._ours(OutboxRow), OutboxRow.state == HELD
            at = connection.scalar(sa.select(sa.func.min(OutboxRow.retry_at)).where(*held))
            return None if at is None else (at - self._now(connection)).total_seconds()

    def prune(self, older_than: timedelta, most: int = 1000) -> int:
        """Delete rows that were published so long ago; return how many, at most `most` a lane."""
        deleted = 0
        for lane in range(LANES):
            with self.database.engine.begin() as connection:
                line = self._now(connection) - older_than
                # The first of a lane were published first: no other index is needed.
                oldest = connection.execute(
                    sa.select(OutboxRow.id, OutboxRow.published_at)
                    .where(self._ours(OutboxRow), OutboxRow.state == PUBLISHED, OutboxRow.lane == lane)
                    .order_by(OutboxRow.id)
                    .limit(most)
                )
                ids = [row.id for row in oldest if row.published_at < line]
                if ids:
                    connection.execute(sa.delete(OutboxRow).where(OutboxRow.id.in_(ids)))
                    deleted += len(ids)
        return deleted

    # For those that inherit

    def _ours(self, table: Any) -> sa.ColumnElement[bool]:
        ours: sa.ColumnElement[bool] = table.prefix == self.prefix
        return ours

    def _now(self, connection: sa.Connection) -> datetime:
        return datetime.fromtimestamp(self.database.dialect.now(connection) / 1_000_000, UTC)

    def _lanes_with_work(self, now: datetime) -> sa.Select[int, int]:
        """Each in its turn: a lane that is never empty must not keep the relay from the others, and
        neither must one in which all waits for a row that is held."""
        ours = self._ours(OutboxRow), OutboxRow.lane == OutboxLaneRow.lane
        before = aliased(OutboxRow)
        same = before.lane == OutboxRow.lane, before.key == OutboxRow.key
        waits = sa.exists().where(self._ours(before), before.state == HELD, *same)
        fresh = sa.exists().where(*ours, OutboxRow.state == PENDING, ~waits)
        again = sa.exists().where(*ours, OutboxRow.state == HELD, OutboxRow.retry_at <= now)
        turn = (OutboxLaneRow.lane + (LANES - 1 - self._last_lane)) % LANES
        return (
            sa.select(OutboxLaneRow.lane, OutboxLaneRow.version)
            .where(self._ours(OutboxLaneRow), OutboxLaneRow.lane < LANES, sa.or_(fresh, again))
            .order_by(turn)
        )

    def _read(self, connection: sa.Connection, lanes: Sequence[int], now: datetime) -> list[Pending]:
        rows: list[Pending] = []
        for lane in lanes:
            rows += self._read_lane(connection, lane, now, BATCH // len(lanes))
            self._last_lane = lane
        return sorted(rows, key=lambda row: row.id)

    def _read_lane(
        self, connection: sa.Connection, lane: int, now: datetime, most: int
    ) -> list[Pending]:
        in_lane = self._ours(OutboxRow), OutboxRow.lane == lane
        columns = OutboxRow.id, OutboxRow.key, OutboxRow.task_id, OutboxRow.tries, OutboxRow.message
        reading = sa.select(*columns).order_by(OutboxRow.id).limit(most)
        fresh = reading.where(*in_lane, OutboxRow.state == PENDING)
        held = *in_lane, OutboxRow.state == HELD
        if connection.scalar(sa.select(OutboxRow.id).where(*held).limit(1)) is None:
            return [_pending(row) for row in connection.execute(fresh)]
        waiting = sa.select(OutboxRow.key).where(*held, OutboxRow.key.is_not(None))
        fresh = fresh.where(sa.or_(OutboxRow.key.is_(None), OutboxRow.key.not_in(waiting)))
        again = reading.where(*held, OutboxRow.retry_at <= now)
        return [_pending(row) for each in (again, fresh) for row in connection.execute(each)]

    def _write(self, connection: sa.Connection, outcome: Outcome) -> None:
        now = self._now(connection)
        if outcome.published:
            ids = [row.id for row in outcome.published]
            done = {"state": PUBLISHED, "published_at": now, "retry_at": None, "error": None}
            connection.execute(sa.update(OutboxRow).where(OutboxRow.id.in_(ids)).values(done))
        for held in outcome.held:
            values = {"tries": held.tries, "retry_at": now + held.wait, "error": held.error}
            self._set(connection, held.row, state=HELD, **values)
        for row, error in outcome.dead:
            self._set(connection, row, state=DEAD, tries=row.tries + 1, retry_at=None, error=error)

    def _set(self, connection: sa.Connection, row: Pending, **values: Any) -> None:
        connection.execute(sa.update(OutboxRow).where(OutboxRow.id == row.id).values(values))


class LockedClaims(Claims):
    """Lanes are rows that are locked, and passed over by others while they are."""

    @contextmanager
    def claim(self) -> Iterator[Claim | None]:
        with self.database.engine.begin() as connection:
            now = self._now(connection)
            lanes = self._lock_some(connection, now)
            rows = self._read(connection, lanes, now) if lanes else []
            yield Claim(rows, lambda outcome: self._write(connection, outcome)) if rows else None

    def _lock_some(self, connection: sa.Connection, now: datetime) -> list[int]:
        # By their keys: MySQL locks all that it looks at, and not only what it returns.
        lanes = [row.lane for row in connection.execute(self._lanes_with_work(now))]
        query = sa.select(OutboxLaneRow.lane).where(self._ours(OutboxLaneRow))
        while lanes:
            some, lanes = lanes[:LANES_AT_ONCE], lanes[LANES_AT_ONCE:]
            those = query.where(OutboxLaneRow.lane.in_(some)).with_for_update(skip_locked=True)
            if locked := list(connection.scalars(those)):
                return locked
        return []


class VersionedClaims(Claims):
    """Lanes are taken for a time, and the version tells whether somebody took them since."""

    def __init__(self, database: Database, prefix: str, ttl: timedelta) -> None:
        super().__init__(database, prefix)
        self._ttl = ttl

    @contextmanager
    def claim(self) -> Iterator[Claim | None]:
        versions, rows = self._take()
        if not versions:
            yield None
            return
        outcomes: list[Outcome] = []
        try:
            yield Claim(rows, outcomes.append)
        finally:
            self._give_back(versions, outcomes)

    def _take(self) -> tuple[dict[int, int], list[Pending]]:
        with self.database.engine.begin() as connection:
            now = self._now(connection)
            free = sa.or_(OutboxLaneRow.until.is_(None), OutboxLaneRow.until <= now)
            some = self._lanes_with_work(now).where(free).limit(LANES_AT_ONCE)
            found = connection.execute(some).all()
            until = now + self._ttl
            taken = {
                row.lane: row.version + 1
                for row in found
                if self._move(connection, row.lane, row.version, until=until)
            }
            return taken, self._read(connection, list(taken), now) if taken else []

    def _give_back(self, versions: Mapping[int, int], outcomes: Sequence[Outcome]) -> None:
        with self.database.engine.begin() as connection:
            are_ours = [
                self._move(connection, lane, version, until=None) for lane, version in versions.items()
            ]
            if not all(are_ours):
                # Whoever took the lane publishes again what we could not record; the ids are the same.
                logger.warning("outbox_claim_lost lanes=%s", sorted(versions))
                connection.rollback()
                return
            for outcome in outcomes:
                self._write(connection, outcome)

    def _move(
        self, connection: sa.Connection, lane: int, version: int, *, until: datetime | None
    ) -> bool:
        """False if somebody else has moved it on."""
        as_we_know_it = OutboxLaneRow.lane == lane, OutboxLaneRow.version == version
        moved = connection.execute(
            sa.update(OutboxLaneRow)
            .where(self._ours(OutboxLaneRow), *as_we_know_it)
            .values(version=version + 1, until=until)
        )
        return bool(moved.rowcount == 1)


def claims_on(database: Database, prefix: str, ttl: timedelta) -> Claims:
    """What this server can do. Connects to it."""
    if _can_skip_locked(database.engine):
        return LockedClaims(database, prefix)
    return VersionedClaims(database, prefix, ttl)


def _can_skip_locked(engine: sa.Engine) -> bool:
    if engine.dialect.name == "sqlite":
        return False
    with engine.connect():
        dialect: Any = engine.dialect  # knows its server once it has connected
    if dialect.name == "postgresql":
        return True
    least = (10, 6) if dialect.is_mariadb else (8, 0, 1)
    return tuple(dialect.server_version_info) >= least


def _pending(row: Any) -> Pending:
    try:
        note = json.loads(row.message)
    except (ValueError, RecursionError):
        note = None
    is_whole = isinstance(note, dict) and note.keys() >= _PARTS
    return Pending(row.id, row.key, row.task_id, row.tries, note if is_whole else None)
