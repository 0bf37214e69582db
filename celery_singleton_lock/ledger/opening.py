"""A ledger by its URL: transactions in its database, made by each process for itself."""

from __future__ import annotations

import logging
import random
import threading
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from celery_singleton_lock.core.errors import ConfigurationError, LedgerUnavailable
from celery_singleton_lock.databases import READS_ONLY, Database, reason_of
from celery_singleton_lock.settings import Settings

from .schema import Schema

logger = logging.getLogger(__name__)

T = TypeVar("T")
App = Any  # Celery ships no types.

DEFAULT_PREFIX: Final = "singleton"
DEFAULT_TIMEOUT: Final = timedelta(seconds=5)


class Ledger:
    """Opening does no I/O, and neither does a fork: each process makes its own connections. May be
    shared by threads."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        """`prefix` keeps apart the applications that share a database."""
        self.database: Final = Database(url, timeout)
        self.prefix: Final = prefix
        self._timeout = timeout
        self._is_usable = False

    @property
    def name(self) -> str:
        """For logs and errors: the URL without its password."""
        return self.database.name

    @property
    def schema(self) -> Schema:
        return Schema(self.database)

    def ensure_usable(self) -> None:
        """For the start of a process: raise `LedgerOutdated` if the tables are missing or old. A
        database that is away is no reason not to start; it is said, and the tables are looked at when
        it is back."""
        if self._is_usable:
            return
        try:
            self.schema.ensure_current()
        except LedgerUnavailable as error:
            logger.warning("ledger_away reason=%s: history is written when it is back", error)
        self._is_usable = True

    def write(self, work: Callable[[sa.Connection], T]) -> T:
        """Do `work` in a transaction, again where that passes: after a deadlock, or on a connection
        that was closed since. Raises `LedgerUnavailable`."""
        return self._transact(work, reads_only=False)

    def read(self, work: Callable[[sa.Connection], T]) -> T:
        """`write`, for what changes nothing and keeps nobody waiting."""
        return self._transact(work, reads_only=True)

    def with_timeout(self, timeout: timedelta) -> Ledger:
        """The same ledger, with connections of its own, for work that takes longer. Close it."""
        return Ledger(self.database.url, prefix=self.prefix, timeout=timeout)

    def close(self) -> None:
        """Close the connections of this process."""
        self.database.close()

    def _transact(self, work: Callable[[sa.Connection], T], *, reads_only: bool) -> T:
        give_up_at = time.monotonic() + self._timeout.total_seconds()
        reconnected = False
        while True:
            try:
                with self.database.engine.connect() as connection:
                    connection = connection.execution_options(**{READS_ONLY: reads_only})
                    with connection.begin():
                        return work(connection)
            except DBAPIError as error:
                stale = error.connection_invalidated and not reconnected
                reconnected = reconnected or stale
                passing = stale or self.database.dialect.is_transient(error)
                if not passing or time.monotonic() > give_up_at:
                    raise LedgerUnavailable(self.name, reason_of(error)) from error
                time.sleep(random.uniform(0.001, 0.01))  # nosec B311 # noqa: S311 - jitter, not a secret
            except (SQLAlchemyError, OSError) as error:
                raise LedgerUnavailable(self.name, reason_of(error)) from error


def open_ledger(
    database_url: str, *, prefix: str = DEFAULT_PREFIX, timeout: timedelta = DEFAULT_TIMEOUT
) -> Ledger:
    """The ledger in the database behind a URL. Connects when it is first used."""
    return Ledger(database_url, prefix=prefix, timeout=timeout)


_ledgers: Final[weakref.WeakKeyDictionary[App, Ledger | None]] = weakref.WeakKeyDictionary()
_opening: Final = threading.Lock()


def ledger_of(app: App) -> Ledger | None:
    """The ledger of a Celery app, opened once; None: ``singleton_database_url`` is not set."""
    # A proxy (celery.current_app) is another object each time: the app behind it is the one.
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _opening:
        if app not in _ledgers:
            settings = Settings.from_app(app)
            url = settings.database_url
            _ledgers[app] = None if url is None else open_ledger(url, prefix=settings.key_prefix)
        return _ledgers[app]


def required_ledger_of(app: App) -> Ledger:
    """`ledger_of`, for what cannot work without: raises `ConfigurationError`."""
    ledger = ledger_of(app)
    if ledger is None:
        raise ConfigurationError(
            "this needs the ledger: set singleton_database_url, for example to "
            "postgresql+psycopg://user:password@host/database"
        )
    return ledger
