"""What is in the outbox, for people. Nothing is changed by it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from celery_singleton_lock.core.errors import ConfigurationError, LedgerUnavailable
from celery_singleton_lock.databases import READS_ONLY, Database, reason_of
from celery_singleton_lock.ledger.outbox_tables import DEAD, HELD, PENDING, PUBLISHED, OutboxRow
from celery_singleton_lock.settings import Settings

STATES: Final = (PENDING, HELD, DEAD, PUBLISHED)
_TIMEOUT: Final = timedelta(seconds=10)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How many rows are in which state. `oldest`: how long the first that is not published waits."""

    pending: int
    held: int
    dead: int
    published: int
    oldest: timedelta | None

    @property
    def facts(self) -> dict[str, Any]:
        return {
            "pending": self.pending,
            "held": self.held,
            "dead": self.dead,
            "published": self.published,
            "oldest_seconds": self.oldest.total_seconds() if self.oldest else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One row, without its message."""

    id: int
    state: str
    key: str | None
    task: str
    task_id: str
    created_at: datetime
    published_at: datetime | None
    tries: int
    retry_at: datetime | None
    error: str | None

    @property
    def facts(self) -> dict[str, Any]:
        def said(value: Any) -> Any:
            return value.isoformat() if isinstance(value, datetime) else value

        return {name: said(getattr(self, name)) for name in self.__slots__}


# By this name, since `list` means something else inside the class.
Entries = list[Entry]


class Outbox:
    """The outbox of an application. Opening does no I/O; all others raise `LedgerUnavailable` while the
    database is away, and `ConfigurationError` where there is no outbox."""

    def __init__(self, settings: Settings) -> None:
        self._database = Database(required_url(settings), _TIMEOUT)
        self._prefix = settings.key_prefix

    def status(self) -> Status:
        return self._read(self._status)

    def list(self, *, state: str | None = None, key: str | None = None, limit: int = 50) -> Entries:
        """Oldest first; by default all but what is published."""
        query = sa.select(OutboxRow).where(OutboxRow.prefix == self._prefix)
        states = [state] if state else [each for each in STATES if each != PUBLISHED]
        query = query.where(OutboxRow.state.in_(states))
        if key is not None:
            query = query.where(OutboxRow.key == key)
        query = query.order_by(OutboxRow.id).limit(limit)
        return self._read(lambda session: [_entry(row) for row in session.scalars(query)])

    def ensure_tables(self) -> None:
        """Raise `ConfigurationError`, which says what to do, where there is no outbox."""
        self._read(lambda _: None)

    def close(self) -> None:
        self._database.close()

    def _status(self, session: Session) -> Status:
        ours = OutboxRow.prefix == self._prefix
        query = sa.select(OutboxRow.state, sa.func.count()).where(ours).group_by(OutboxRow.state)
        counts: dict[str, int] = dict(session.execute(query).all())
        waiting = ours, OutboxRow.state.in_((PENDING, HELD))
        first = session.scalar(sa.select(sa.func.min(OutboxRow.created_at)).where(*waiting))
        return Status(
            **{state: counts.get(state, 0) for state in STATES},
            oldest=None if first is None else max(timedelta(0), datetime.now(UTC) - first),
        )

    def _read(self, work: Callable[[Session], T]) -> T:
        engine = self._database.engine.execution_options(**{READS_ONLY: True})
        try:
            with engine.connect() as connection:
                if not sa.inspect(connection).has_table(OutboxRow.__tablename__):
                    raise ConfigurationError(
                        f"{self._database.name} has no outbox: run `celery -A app singleton db "
                        "upgrade`, or add its tables to your metadata (outbox.add_tables) and migrate"
                    )
                with Session(connection) as session:
                    return work(session)
        except (SQLAlchemyError, OSError) as error:
            raise LedgerUnavailable(self._database.name, reason_of(error)) from error


def required_url(settings: Settings) -> str:
    """Where the outbox is. Raises `ConfigurationError` if that is nowhere."""
    url = settings.outbox_database
    if url is None:
        raise ConfigurationError(
            "there is no outbox: set singleton_outbox_url to the database of your transactions, or "
            "singleton_database_url if the ledger is there, too"
        )
    return url


def _entry(row: OutboxRow) -> Entry:
    return Entry(**{name: getattr(row, name) for name in Entry.__slots__})
