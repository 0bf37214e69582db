"""One upgrade at a time, by an advisory lock, which a dead session lets go by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import sqlalchemy as sa

_NAME: Final = "singleton_ledger_upgrade"
_NUMBER: Final = 0x73_69_6E_67_6C_65  # PostgreSQL's locks have numbers
_LONGEST_WAIT_S: Final = 6 * 3600


@contextmanager
def take_turn(connection: sa.Connection) -> Iterator[None]:
    """SQLite needs none: its transactions that write are one at a time."""
    match connection.dialect.name:
        case "postgresql":
            # Until the transaction ends, in which all of the upgrade is.
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_NUMBER)))
            yield
        case "mysql" | "mariadb":
            connection.execute(sa.select(sa.func.get_lock(_NAME, _LONGEST_WAIT_S)))
            try:
                yield
            finally:
                connection.execute(sa.select(sa.func.release_lock(_NAME)))
        case _:
            yield
