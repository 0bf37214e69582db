"""The tables of the ledger. docs/ledger.md explains every column.

A change here needs a revision in `migrations/versions`; a test compares the two.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .columns import Digest, Flag, LongText, Name, Number, RowId, Seconds, Time, Word

TABLE_PREFIX: Final = "singleton_"

MYSQL: Final[dict[str, Any]] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}
"""Names are told apart as everywhere else: by case and by accents."""

NAMING: Final = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

metadata: Final = sa.MetaData(naming_convention=NAMING)


class Base(DeclarativeBase):
    metadata = metadata


def add_tables_to(theirs: sa.MetaData, *rows: type[Base]) -> None:
    """Make the tables of these part of the metadata of an application, unless they are."""
    for row in rows:
        table = metadata.tables[row.__tablename__]
        if table.name not in theirs.tables:
            table.to_metadata(theirs)


class LedgerRow(Base):
    """One row: which ledger this is. A session that finds the same name is on the same database."""

    __tablename__ = TABLE_PREFIX + "ledger"
    __table_args__: Any = (MYSQL,)

    name: Mapped[Word] = mapped_column(primary_key=True)
    created_at: Mapped[Time]


class ScheduleRow(Base):
    """The schedule, for those who ask in SQL. A copy: what beat goes by is in the lease store."""

    __tablename__ = TABLE_PREFIX + "schedule"
    __table_args__: Any = (MYSQL,)

    prefix: Mapped[Name] = mapped_column(primary_key=True)
    app: Mapped[Name] = mapped_column(primary_key=True)
    entry: Mapped[Name] = mapped_column(primary_key=True)
    task: Mapped[Name]
    schedule: Mapped[LongText]
    is_added: Mapped[Flag]
    is_paused: Mapped[Flag]
    paused_by: Mapped[Name | None]
    paused_why: Mapped[LongText | None]
    last_slot: Mapped[Time | None]
    next_slot: Mapped[Time | None]
    changed_at: Mapped[Time]


class RunRow(Base):
    """History: the latest that is known of a run."""

    __tablename__ = TABLE_PREFIX + "runs"
    __table_args__: Any = (
        sa.UniqueConstraint("prefix", "run_id", name="uq_singleton_runs_run"),
        sa.Index("ix_singleton_runs_due", "prefix", "due_at", "id"),
        sa.Index("ix_singleton_runs_entry", "prefix", "entry", "due_at", "id"),
        sa.Index("ix_singleton_runs_task", "prefix", "task", "due_at", "id"),
        sa.Index("ix_singleton_runs_status", "prefix", "status", "due_at", "id"),
        sa.Index("ix_singleton_runs_duration", "prefix", "duration_s", "id"),
        MYSQL,
    )

    id: Mapped[RowId]
    prefix: Mapped[Name]
    run_id: Mapped[Name]
    task: Mapped[Name | None]
    entry: Mapped[Name | None]
    slot: Mapped[Time | None]
    due_at: Mapped[Time]
    status: Mapped[Word]
    reason: Mapped[Name | None]
    stage: Mapped[Number]
    attempt: Mapped[int]
    fence: Mapped[Number]
    worker: Mapped[Name | None]
    published_at: Mapped[Time | None]
    started_at: Mapped[Time | None]
    ended_at: Mapped[Time | None]
    lag_s: Mapped[Seconds | None]
    duration_s: Mapped[Seconds | None]
    error: Mapped[LongText | None]


class AttemptRow(Base):
    """History: one execution of a run that did not simply succeed at once."""

    __tablename__ = TABLE_PREFIX + "attempts"
    __table_args__: Any = (
        sa.UniqueConstraint("prefix", "run_id", "attempt", "fence", name="uq_singleton_attempts_run"),
        sa.Index("ix_singleton_attempts_ended", "prefix", "ended_at", "id"),
        MYSQL,
    )

    id: Mapped[RowId]
    prefix: Mapped[Name]
    run_id: Mapped[Name]
    attempt: Mapped[int]
    fence: Mapped[Number]
    outcome: Mapped[Word]
    worker: Mapped[Name | None]
    started_at: Mapped[Time | None]
    ended_at: Mapped[Time]
    duration_s: Mapped[Seconds | None]
    error: Mapped[LongText | None]


class ClaimRow(Base):
    """Who may finish a run, or write for a job: what exactly-once effects rest on."""

    __tablename__ = TABLE_PREFIX + "claims"
    __table_args__: Any = (sa.Index("ix_singleton_claims_claimed_at", "claimed_at"), MYSQL)

    digest: Mapped[Digest] = mapped_column(primary_key=True)
    prefix: Mapped[Name]
    key: Mapped[LongText]
    owner: Mapped[LongText]
    fence: Mapped[Number]
    position: Mapped[Number]
    claimed_at: Mapped[Time]
    finished_at: Mapped[Time | None]
    result: Mapped[LongText | None]


class LetterRow(Base):
    """History: a run that went to the dead letters. The message itself is in the queue."""

    __tablename__ = TABLE_PREFIX + "letters"
    __table_args__: Any = (
        sa.UniqueConstraint("prefix", "letter_id", name="uq_singleton_letters_letter"),
        sa.Index("ix_singleton_letters_dead", "prefix", "dead_at", "id"),
        MYSQL,
    )

    id: Mapped[RowId]
    prefix: Mapped[Name]
    letter_id: Mapped[Name]
    run_id: Mapped[Name | None]
    task: Mapped[Name | None]
    reason: Mapped[Name]
    error: Mapped[LongText | None]
    dead_at: Mapped[Time]


class GapRow(Base):
    """History: what it lacks, because the database was away for longer than a process could wait."""

    __tablename__ = TABLE_PREFIX + "gaps"
    __table_args__: Any = (
        sa.UniqueConstraint("prefix", "replica", "began_at", name="uq_singleton_gaps_gap"),
        sa.Index("ix_singleton_gaps_ended", "prefix", "ended_at", "id"),
        MYSQL,
    )

    id: Mapped[RowId]
    prefix: Mapped[Name]
    replica: Mapped[Name]
    began_at: Mapped[Time]
    ended_at: Mapped[Time]
    facts: Mapped[Number]


class AuditRow(Base):
    """Who did what, by a command or a page: unlock, replay, purge, pause, and the like."""

    __tablename__ = TABLE_PREFIX + "audit"
    __table_args__: Any = (sa.Index("ix_singleton_audit_at", "prefix", "at", "id"), MYSQL)

    id: Mapped[RowId]
    prefix: Mapped[Name]
    at: Mapped[Time]
    who: Mapped[Name]
    action: Mapped[Name]
    facts: Mapped[LongText]
