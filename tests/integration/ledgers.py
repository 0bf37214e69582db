"""Ledgers on real databases, each new and empty."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from celery_singleton_lock.ledger import Ledger, metadata, open_ledger
from celery_singleton_lock.ledger.schema import VERSION_TABLE, head
from celery_singleton_lock.ledger.tables import LedgerRow

DATABASES = ("sqlite", "postgres", "mariadb")


def url_of(name: str, request: pytest.FixtureRequest) -> str:
    if name == "sqlite":
        return f"sqlite:///{request.getfixturevalue('tmp_path')}/ledger.db"
    server: Any = request.getfixturevalue(name)
    return str(server.url)


def empty_ledger(url: str, **options: Any) -> Ledger:
    """Without tables, though a test before left some in the same database."""
    ledger = open_ledger(url, **options)
    ledger.write(drop_all)
    return ledger


def drop_all(connection: sa.Connection) -> None:
    metadata.drop_all(connection)
    sa.Table(VERSION_TABLE, sa.MetaData()).drop(connection, checkfirst=True)


def ready_ledger(url: str, **options: Any) -> Ledger:
    """With tables, and nothing in them."""
    ledger = open_ledger(url, **options)
    if ledger.schema.current() != head():
        ledger.write(drop_all)
        ledger.schema.upgrade()
    ledger.write(_clear)
    return ledger


def _clear(connection: sa.Connection) -> None:
    for table in metadata.sorted_tables:
        if table.name != LedgerRow.__tablename__:
            connection.execute(table.delete())
