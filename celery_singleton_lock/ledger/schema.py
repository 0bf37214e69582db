"""Whether the tables are there, and those of this version; and how they get so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from importlib import resources
from typing import TYPE_CHECKING, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from celery_singleton_lock.core.errors import ConfigurationError, LedgerOutdated, LedgerUnavailable
from celery_singleton_lock.databases import READS_ONLY, Database, reason_of

from .tables import metadata

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE: Final = "singleton_ledger_version"
"""Not Alembic's default: in the database of an application that has migrations of its own."""
_LONGEST_UPGRADE: Final = timedelta(hours=6)

_one_at_a_time: Final = threading.Lock()  # what Alembic gives to its environment is a global

T = TypeVar("T")


def head() -> str:
    """The revision of this version's tables. Found without Alembic, which no worker needs."""
    names = (each.name for each in (resources.files(__package__) / "migrations/versions").iterdir())
    return max(name.partition("_")[0] for name in names if name.endswith(".py") and name[0].isdigit())


class Schema:
    def __init__(self, database: Database) -> None:
        self._database = database

    def current(self) -> str | None:
        """The revision of the tables; None: there are none. Raises `LedgerUnavailable`."""
        return self._do(_current)

    def ensure_current(self) -> None:
        """Raise `LedgerOutdated` unless the tables are those of this version, or newer; raise
        `LedgerUnavailable` if that cannot be found out now."""
        found = self.current()
        # Newer tables serve older code: revisions add, so that a deploy may upgrade them first.
        if found is None or found < head():
            raise LedgerOutdated(self._database.name, found, head())

    def upgrade(self, to: str = "head") -> list[str]:
        """Bring the tables to this version, and return the revisions that were applied. Who else does
        so at the same time waits, and then finds nothing to do. `to`: no further than this revision."""
        config = _config()
        from alembic import command

        found = self.current()
        if found is not None and found > head():
            return []
        applied: list[str] = []
        config.attributes["applied"] = applied
        # A revision may take long: it is not bounded as a query is.
        database = self._database.with_timeout(_LONGEST_UPGRADE)
        try:
            with _one_at_a_time, database.engine.connect() as connection:
                config.attributes["connection"] = connection
                command.upgrade(config, to)
        except (SQLAlchemyError, OSError) as error:
            raise LedgerUnavailable(self._database.name, reason_of(error)) from error
        finally:
            database.close()
        return applied

    def differences(self) -> list[str]:
        """How the tables differ from what this version expects; empty: they do not."""
        _config()
        return self._do(_differences)

    def _do(self, work: Callable[[sa.Connection], T]) -> T:
        try:
            with self._database.engine.connect() as connection:
                connection = connection.execution_options(**{READS_ONLY: True})
                return work(connection)
        except (SQLAlchemyError, OSError) as error:
            raise LedgerUnavailable(self._database.name, reason_of(error)) from error


def is_ours(name: str | None, kind: str, _parents: object = None) -> bool:
    """Whether Alembic is to look at it: the other tables of the database are somebody else's."""
    return kind != "table" or name in metadata.tables


def _current(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    version = sa.table(VERSION_TABLE, sa.column("version_num", sa.String))
    found: str | None = connection.scalar(sa.select(version.c.version_num))
    return found


def _differences(connection: sa.Connection) -> list[str]:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    options = {"compare_type": True, "include_name": is_ours, "version_table": VERSION_TABLE}
    context = MigrationContext.configure(connection, opts=options)
    return [repr(each) for each in compare_metadata(context, metadata)]


def _config() -> Config:
    try:
        from alembic.config import Config
    except ImportError:
        raise ConfigurationError(
            "this needs Alembic: pip install 'celery-singleton-lock[ledger]'"
        ) from None
    config = Config()
    config.set_main_option("script_location", f"{__package__}:migrations")
    config.set_main_option("path_separator", "os")
    return config
