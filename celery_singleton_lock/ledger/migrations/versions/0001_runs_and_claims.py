"""Runs, attempts, claims, letters, audit, and the name of the ledger."""

import uuid
from datetime import UTC, datetime
from typing import Final

import sqlalchemy as sa
from alembic import op

from celery_singleton_lock.ledger.columns import LONG_TEXT, ROW_ID, UtcDateTime
from celery_singleton_lock.ledger.tables import MYSQL

revision: Final = "0001"
down_revision: Final = None

_name: Final = sa.String(255)


def upgrade() -> None:
    ledger = op.create_table(
        "singleton_ledger",
        sa.Column("name", sa.String(32), nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_singleton_ledger"),
        **MYSQL,
    )
    op.bulk_insert(ledger, [{"name": uuid.uuid4().hex, "created_at": datetime.now(UTC)}])
    op.create_table(
        "singleton_runs",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("run_id", _name, nullable=False),
        sa.Column("task", _name),
        sa.Column("entry", _name),
        sa.Column("slot", UtcDateTime()),
        sa.Column("due_at", UtcDateTime(), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        sa.Column("reason", _name),
        sa.Column("stage", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("worker", _name),
        sa.Column("published_at", UtcDateTime()),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime()),
        sa.Column("lag_s", sa.Double()),
        sa.Column("duration_s", sa.Double()),
        sa.Column("error", LONG_TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_singleton_runs"),
        sa.UniqueConstraint("prefix", "run_id", name="uq_singleton_runs_run"),
        **MYSQL,
    )
    op.create_index("ix_singleton_runs_due", "singleton_runs", ["prefix", "due_at", "id"])
    op.create_index("ix_singleton_runs_entry", "singleton_runs", ["prefix", "entry", "due_at", "id"])
    op.create_index("ix_singleton_runs_task", "singleton_runs", ["prefix", "task", "due_at", "id"])
    op.create_index("ix_singleton_runs_status", "singleton_runs", ["prefix", "status", "due_at", "id"])
    op.create_index("ix_singleton_runs_duration", "singleton_runs", ["prefix", "duration_s", "id"])
    op.create_table(
        "singleton_attempts",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("run_id", _name, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("worker", _name),
        sa.Column("started_at", UtcDateTime()),
        sa.Column("ended_at", UtcDateTime(), nullable=False),
        sa.Column("duration_s", sa.Double()),
        sa.Column("error", LONG_TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_singleton_attempts"),
        sa.UniqueConstraint("prefix", "run_id", "attempt", "fence", name="uq_singleton_attempts_run"),
        **MYSQL,
    )
    op.create_index("ix_singleton_attempts_ended", "singleton_attempts", ["prefix", "ended_at", "id"])
    op.create_table(
        "singleton_claims",
        sa.Column("digest", sa.CHAR(64), nullable=False),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("key", LONG_TEXT, nullable=False),
        sa.Column("owner", LONG_TEXT, nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("claimed_at", UtcDateTime(), nullable=False),
        sa.Column("finished_at", UtcDateTime()),
        sa.Column("result", LONG_TEXT),
        sa.PrimaryKeyConstraint("digest", name="pk_singleton_claims"),
        **MYSQL,
    )
    op.create_index("ix_singleton_claims_claimed_at", "singleton_claims", ["claimed_at"])
    op.create_table(
        "singleton_letters",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("letter_id", _name, nullable=False),
        sa.Column("run_id", _name),
        sa.Column("task", _name),
        sa.Column("reason", _name, nullable=False),
        sa.Column("error", LONG_TEXT),
        sa.Column("dead_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_singleton_letters"),
        sa.UniqueConstraint("prefix", "letter_id", name="uq_singleton_letters_letter"),
        **MYSQL,
    )
    op.create_index("ix_singleton_letters_dead", "singleton_letters", ["prefix", "dead_at", "id"])
    op.create_table(
        "singleton_audit",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("at", UtcDateTime(), nullable=False),
        sa.Column("who", _name, nullable=False),
        sa.Column("action", _name, nullable=False),
        sa.Column("facts", LONG_TEXT, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_singleton_audit"),
        **MYSQL,
    )
    op.create_index("ix_singleton_audit_at", "singleton_audit", ["prefix", "at", "id"])
