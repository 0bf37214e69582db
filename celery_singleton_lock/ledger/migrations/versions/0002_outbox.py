"""The outbox, and the lanes that its relays take."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from celery_singleton_lock.ledger.columns import LONG_TEXT, ROW_ID, UtcDateTime
from celery_singleton_lock.ledger.tables import MYSQL

revision: Final = "0002"
down_revision: Final = "0001"

_name: Final = sa.String(255)


def upgrade() -> None:
    op.create_table(
        "singleton_outbox",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("key", _name),
        sa.Column("task", _name, nullable=False),
        sa.Column("task_id", _name, nullable=False),
        sa.Column("message", LONG_TEXT, nullable=False),
        sa.Column("created_at", UtcDateTime(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("retry_at", UtcDateTime()),
        sa.Column("published_at", UtcDateTime()),
        sa.Column("error", LONG_TEXT),
        sa.PrimaryKeyConstraint("id", name="pk_singleton_outbox"),
        sqlite_autoincrement=True,
        **MYSQL,
    )
    op.create_index("ix_singleton_outbox_lane", "singleton_outbox", ["prefix", "state", "lane", "id"])
    op.create_table(
        "singleton_outbox_lanes",
        sa.Column("prefix", _name, nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("until", UtcDateTime()),
        sa.PrimaryKeyConstraint("prefix", "lane", name="pk_singleton_outbox_lanes"),
        **MYSQL,
    )
