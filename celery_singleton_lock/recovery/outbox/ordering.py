"""What happens in the user's transaction when rows are written: keys are locked, relays notified.

A row has its id before it is committed. Of two transactions that send for one key, the one with the
greater id might be committed first. So the first to write one keeps the others waiting until it ends:
then ids grow in the order of the commits, and the relay publishes in the order of ids. SQLite has one
writer at a time, and needs no lock.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.orm import object_session

from celery_singleton_lock.ledger.outbox_tables import OutboxLaneRow, OutboxRow

from .lanes import LANES, lock_of

_ADVISORY_CLASS: Final = 0x6F_75_74_62
"""Our part of PostgreSQL's advisory locks."""
_SEEN: Final = "singleton_outbox"


def channel_of(prefix: str) -> str:
    """What PostgreSQL's NOTIFY names: at most 63 bytes."""
    return f"singleton_outbox_{hashlib.sha256(prefix.encode()).hexdigest()[:16]}"


def watch() -> None:
    """From now on, in this process."""
    event.listen(OutboxRow, "before_insert", _before_insert)


def _before_insert(_mapper: Any, connection: sa.Connection, row: OutboxRow) -> None:
    """Called for each row of a flush, before the first of them is written."""
    transaction = connection.get_nested_transaction() or connection.get_transaction()
    seen = connection.info.get(_SEEN)
    if seen is None or seen.transaction is not transaction:
        # What a savepoint locked or notified is undone with it: then it is done again.
        seen = connection.info[_SEEN] = _Seen(transaction)
        _notify(connection, row.prefix)
    if row.key is None or lock_of(row.key) in seen.locks:
        return
    session = object_session(row)
    rows = [each for each in session.new if isinstance(each, OutboxRow)] if session else [row]
    # All at once and in order: two that lock the same keys wait for each other, and do not deadlock.
    locks = {lock_of(each.key) for each in rows if each.key is not None} - seen.locks
    _lock(connection, row.prefix, sorted(locks))
    seen.locks |= locks


class _Seen:
    def __init__(self, transaction: object) -> None:
        self.transaction = transaction
        self.locks: set[int] = set()


def _notify(connection: sa.Connection, prefix: str) -> None:
    if connection.dialect.name == "postgresql":
        # Heard when this transaction is committed; never if it is rolled back.
        connection.execute(sa.select(sa.func.pg_notify(channel_of(prefix), "")))


def _lock(connection: sa.Connection, prefix: str, locks: list[int]) -> None:
    match connection.dialect.name:
        case "postgresql":
            numbers = sa.func.unnest(sa.literal(locks, postgresql.ARRAY(sa.Integer)))
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_ADVISORY_CLASS, numbers)))
        case "mysql" | "mariadb":
            # It has no lock that ends with a transaction, but that of a row.
            rows = [{"prefix": prefix, "lane": LANES + lock, "version": 0} for lock in locks]
            insert = mysql.insert(OutboxLaneRow).values(rows)
            connection.execute(insert.on_duplicate_key_update(version=OutboxLaneRow.version))
