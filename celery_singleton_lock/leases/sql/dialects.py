"""What differs between databases: the clock, the upsert, timeouts, and which errors pass by."""

from __future__ import annotations

import contextlib
import math
import os
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError

from .tables import leases

_WRITTEN = [column.name for column in leases.columns if not column.primary_key]


class Dialect(ABC):
    name: ClassVar[str]
    clock: ClassVar[sa.ColumnElement[int] | None] = None
    """The database's time in µs, in SQL."""
    transient: ClassVar[frozenset[Any]] = frozenset()
    """Codes of errors after which the same transaction may succeed: deadlocks and the like."""

    def now(self, connection: sa.Connection) -> int:
        assert self.clock is not None  # noqa: S101 - for the type checker
        return int(connection.scalar(sa.select(self.clock)) or 0)

    @abstractmethod
    def upsert(self) -> sa.Insert:
        """Writes a row that may exist."""

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

    def upsert(self) -> sa.Insert:
        insert = postgresql.insert(leases)
        return insert.on_conflict_do_update(
            index_elements=[leases.c.digest],
            set_={name: insert.excluded[name] for name in _WRITTEN},
        )

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
        def begin(connection: Any, record: Any, _proxy: Any) -> None:
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

        sa.event.listen(engine, "checkout", begin)
        sa.event.listen(engine, "checkin", end)
        sa.event.listen(engine, "invalidate", end)

    def _code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlstate", None)


def _hang_up(line: socket.socket) -> None:
    with contextlib.suppress(OSError):
        line.shutdown(socket.SHUT_RDWR)


class MySql(Dialect):
    name = "mysql"
    # NOW() would be the time at which the statement began; the session's zone is UTC, see below.
    clock = sa.cast(sa.func.unix_timestamp(sa.literal_column("SYSDATE(6)")) * 1_000_000, sa.BigInteger)
    # Deadlock, lock wait timeout, and MariaDB's "record has changed since last read".
    transient = frozenset({1213, 1205, 1020})

    def upsert(self) -> sa.Insert:
        insert = mysql.insert(leases)
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in _WRITTEN})

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

    def upsert(self) -> sa.Insert:
        insert = sqlite.insert(leases)
        return insert.on_conflict_do_update(
            index_elements=[leases.c.digest],
            set_={name: insert.excluded[name] for name in _WRITTEN},
        )

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
            connection.exec_driver_sql("BEGIN IMMEDIATE")

    def _code(self, error: DBAPIError) -> Any:
        return getattr(error.orig, "sqlite_errorname", None)


DIALECTS: Mapping[str, Dialect] = {
    "postgresql": Postgres(),
    "mysql": MySql(),
    "mariadb": MySql(),
    "sqlite": Sqlite(),
}
