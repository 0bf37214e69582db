"""Databases, for whoever keeps something in one: an engine for each process, and what differs between
them: the clock, the upsert, timeouts, and which errors pass by."""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, NoSuchModuleError

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import redact

READS_ONLY: Final = "singleton_reads_only"
"""An execution option: this transaction writes nothing, and need not wait for those that do."""

Changes = Callable[[Any], Mapping[str, Any]]
"""From the row that was to be inserted (a column for each of its values) to what is set instead."""


class Dialect(ABC):
    name: ClassVar[str]
    clock: ClassVar[sa.ColumnElement[int] | None] = None
    """The database's time in µs, in SQL."""
    transient: ClassVar[frozenset[Any]] = frozenset()
    """Codes of errors after which the same transaction may succeed: deadlocks and the like."""

    def now(self, connection: sa.Connection) -> int:
        assert self.clock is not None  # nosec B101 # noqa: S101 - for the type checker
        return int(connection.scalar(sa.select(self.clock)) or 0)

    @abstractmethod
    def upsert(self, table: sa.Table, key: Sequence[str], changes: Changes | None = None) -> sa.Insert:
        """Writes a row that may exist, by the columns of its unique `key`. `changes` says what becomes
        of one that does; by default all of it is as in the new one."""

    def upsert_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        key: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        changes: Changes | None = None,
    ) -> None:
        """`upsert` for many, which all name the same columns. The later of two with one key counts."""
        if rows:
            connection.execute(_upsert(self, table, tuple(key), changes), rows)

    @abstractmethod
    def engine_options(self, timeout: timedelta) -> Mapping[str, Any]: ...

    def prepare(self, engine: sa.Engine, timeout: timedelta) -> None:
        """Register what every connection needs."""

    def is_transient(self, error: DBAPIError) -> bool:
        # Two of us inserted the same new key: the second finds the row when it looks again.
        return isinstance(error, IntegrityError) or self._code(error) in self.transient

    def _code(self, error: DBAPIError) -> Any:
        return None


class Postgres(Dialect):
    name = "postgresql"
    # now() would be the time at which the transaction began.
    clock = sa.cast(sa.extract("epoch", sa.func.clock_timestamp()) * 1_000_000, sa.BigInteger)
    transient = frozenset({"40001", "40P01"})

    def upsert(self, table: sa.Table, key: Sequence[str], changes: Changes | None = None) -> sa.Insert:
        insert = postgresql.insert(table)
        set_ = _changes(table, key, changes)(insert.excluded)
        return insert.on_conflict_do_update(index_elements=key, set_=set_)

    def upsert_all(
        self,
        connection: sa.Connection,
        table: sa.Table,
        key: Sequence[str],
        rows: Sequence[Mapping[str, Any]],
        changes: Changes | None = None,
    ) -> None:
        # One statement for all, with one parameter: the driver takes much longer to write an array for
        # each column, and the server for a statement for each row.
        if rows:
            statement = _upsert_recordset(table, tuple(key), changes, tuple(rows[0]))
            # It refuses to change a row twice.
            last = {tuple(row[name] for name in key): row for row in rows}
            written = json.dumps([*last.values()], default=datetime.isoformat)
            connection.execute(statement, {"rows": written})

    def engine_options(self, timeout: timedelta) -> Mapping[str, Any]:
        milliseconds = math.ceil(timeout.total_seconds() * 1000)
        return {
            "isolation_level": "READ COMMITTED",
            "connect_args": {
                "connect_timeout": max(2, math.ceil(timeout.total_seconds())),
                # A host that vanished must not hold a call for the kernel's quarter of an hour.
                "tcp_user_timeout": milliseconds,
                "options": f"-c statement_timeout={milliseconds} -c lock_timeout={milliseconds}",
            },
        }

    def prepare(self, engine: sa.Engine, timeout: timedelta) -> None:
        # The driver waits for ever for a server that has gone silent; its timeouts are the server's.
        def begin(connection: Any, record: Any, *_: Any) -> None:
            end(connection, record)
            # A copy of the descriptor cannot become another connection's before we close it.
            line = socket.socket(fileno=os.dup(connection.fileno()))
            timer = threading.Timer(timeout.total_seconds(), _hang_up, (line,))
            timer.daemon = True
            timer.start()
            record.info["hang_up"] = (timer, line)

        def end(_connection: Any, record: Any, *_: Any) -> None:
            timer, line = record.info.pop("hang_up", (None, None))
            if timer is not None:
                timer.cancel()
                line.close()

        # First of all: SQLAlchemy asks a new connection for the version, and more, before we have it.
        sa.event.listen(engine, "connect", begin, insert=True)
        sa.event.listen(engine, "checkout", begin)
        sa.event.listen(engine, "checkin", end)
        sa.event.listen(engine, "invalidate", end)

    def _code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlstate", None)


def _hang_up(line: socket.socket) -> None:
    with line, contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class MySql(Dialect):
    name = "mysql"
    # NOW() would be the time at which the statement began; the session's zone is UTC, see below.
    clock = sa.cast(sa.func.unix_timestamp(sa.literal_column("SYSDATE(6)")) * 1_000_000, sa.BigInteger)
    # Deadlock, lock wait timeout, and MariaDB's "record has changed since last read".
    transient = frozenset({1213, 1205, 1020})

    def upsert(self, table: sa.Table, key: Sequence[str], changes: Changes | None = None) -> sa.Insert:
        """Its assignments are made one after the other, and each sees what those before it have set."""
        insert = mysql.insert(table)
        set_ = _changes(table, key, changes)(insert.inserted)
        return insert.on_duplicate_key_update(list(set_.items()))

    def engine_options(self, timeout: timedelta) -> Mapping[str, Any]:
        seconds = timeout.total_seconds()
        return {
            "isolation_level": "READ COMMITTED",
            "connect_args": {
                "connect_timeout": max(1, math.ceil(seconds)),
                "read_timeout": seconds,
                "write_timeout": seconds,
                "init_command": "SET time_zone = '+00:00', "
                f"innodb_lock_wait_timeout = {max(1, math.ceil(seconds))}",
            },
        }

    def _code(self, error: DBAPIError) -> Any:
        return error.orig.args[0] if error.orig is not None and error.orig.args else None


class Sqlite(Dialect):
    """One host only: its clock is the host's, and its file must not be on a network drive."""

    name = "sqlite"
    transient = frozenset({"SQLITE_BUSY", "SQLITE_BUSY_SNAPSHOT", "SQLITE_LOCKED"})

    def now(self, connection: sa.Connection) -> int:
        return time.time_ns() // 1000

    def upsert(self, table: sa.Table, key: Sequence[str], changes: Changes | None = None) -> sa.Insert:
        insert = sqlite.insert(table)
        set_ = _changes(table, key, changes)(insert.excluded)
        return insert.on_conflict_do_update(index_elements=key, set_=set_)

    def engine_options(self, timeout: timedelta) -> Mapping[str, Any]:
        return {"connect_args": {"timeout": timeout.total_seconds()}}

    def prepare(self, engine: sa.Engine, timeout: timedelta) -> None:
        @sa.event.listens_for(engine, "connect")
        def connected(connection: Any, _record: Any) -> None:
            # Without this, the driver begins transactions of its own, too late to be IMMEDIATE.
            connection.isolation_level = None
            # Readers and the writer do not wait for each other.
            connection.execute("PRAGMA journal_mode = WAL").close()

        @sa.event.listens_for(engine, "begin")
        def begun(connection: sa.Connection) -> None:
            # A transaction that begins as a reader cannot always become a writer.
            reads_only = connection.get_execution_options().get(READS_ONLY)
            connection.exec_driver_sql("BEGIN" if reads_only else "BEGIN IMMEDIATE")

    def _code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorname", None)


DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Postgres(),
    "mysql": MySql(),
    "mariadb": MySql(),
    "sqlite": Sqlite(),
}


def dialect_of(connection: sa.Connection) -> Dialect:
    """For a connection that is not of a `Database`: a user's own."""
    return DIALECTS[connection.dialect.name]


def _changes(table: sa.Table, key: Sequence[str], changes: Changes | None) -> Changes:
    names = [each.name for each in table.columns if not each.primary_key and each.name not in key]
    return changes or (lambda new: {name: new[name] for name in names})


# To make a statement takes as long as to write dozens of rows with it.


@lru_cache(maxsize=64)
def _upsert(
    dialect: Dialect, table: sa.Table, key: tuple[str, ...], changes: Changes | None
) -> sa.Insert:
    return dialect.upsert(table, key, changes)


@lru_cache(maxsize=64)
def _upsert_recordset(
    table: sa.Table, key: tuple[str, ...], changes: Changes | None, names: tuple[str, ...]
) -> sa.Insert:
    written = sa.cast(sa.bindparam("rows", type_=sa.Text), postgresql.JSON)
    columns = [sa.column(name, table.c[name].type) for name in names]
    rows = sa.func.json_to_recordset(written).table_valued(*columns, name="rows")
    insert = postgresql.insert(table).from_select(
        names, sa.select(*rows.render_derived(with_types=True).c), include_defaults=False
    )
    return insert.on_conflict_do_update(
        index_elements=key, set_=_changes(table, key, changes)(insert.excluded)
    )


class Database:
    """A database by its URL. Opening does no I/O; each process has connections of its own."""

    def __init__(self, url: str, timeout: timedelta) -> None:
        """`timeout` bounds every wait for the server."""
        self.name: Final = redact(url)
        """For logs and errors: without a password."""
        self.url: Final = url
        self._url = _checked(url, self.name)
        self.dialect: Final = DIALECTS[self._url.get_backend_name()]
        self._timeout = timeout
        self._use_new_engine()

    @property
    def engine(self) -> sa.Engine:
        if self._pid != os.getpid():
            # A forked child must neither use nor close its parent's connections.
            self._engine.dispose(close=False)
            self._use_new_engine()
        return self._engine

    def with_timeout(self, timeout: timedelta) -> Database:
        """The same database, with connections of its own."""
        return Database(self.url, timeout)

    def close(self) -> None:
        self._engine.dispose()

    def _use_new_engine(self) -> None:
        self._pid = os.getpid()
        self._engine = sa.create_engine(
            self._url,
            # Every thread of a busy worker may need one: their number is the limit.
            max_overflow=-1,
            **self.dialect.engine_options(self._timeout),
        )
        self.dialect.prepare(self._engine, self._timeout)


def _checked(url: str, name: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
        parsed.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError):
        raise ConfigurationError(
            f"database URL {name!r} cannot be used: write it as SQLAlchemy does, for "
            "example postgresql+psycopg://user:password@host/database"
        ) from None
    except ImportError as error:
        raise ConfigurationError(
            f"database URL {name!r} needs a driver that is not installed ({error}): "
            "pip install 'celery-singleton-lock[postgres]' or '[mysql]'"
        ) from None
    if parsed.get_backend_name() == "sqlite" and parsed.database in (None, "", ":memory:"):
        raise ConfigurationError(
            "SQLite in memory is not shared by processes, nor by connections: use memory:// "
            "for one process, or sqlite:////path/to/file"
        )
    return parsed


def reason_of(error: Exception) -> str:
    """What the driver says, on one line, for an error of our own."""
    cause = getattr(error, "orig", None) or error
    reason = redact(" ".join(f"{type(cause).__name__}: {cause}".split()))
    if "unable to open database file" in reason:  # of SQLite, which says no more
        reason += " (does its directory exist, and may you write there?)"
    return reason
