"""The schedule, as beat shows it."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from celery_singleton_lock.ledger.columns import LONG_TEXT, UtcDateTime
from celery_singleton_lock.ledger.tables import MYSQL

revision: Final = "0005"
down_revision: Final = "0004"

_name: Final = sa.String(255)


def upgrade() -> None:
    op.create_table(
        "singleton_schedule",
        sa.Column("prefix", _name, nullable=False),
        sa.Column("app", _name, nullable=False),
        sa.Column("entry", _name, nullable=False),
        sa.Column("task", _name, nullable=False),
        sa.Column("schedule", LONG_TEXT, nullable=False),
        sa.Column("is_added", sa.Boolean(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("paused_by", _name),
        sa.Column("paused_why", LONG_TEXT),
        sa.Column("last_slot", UtcDateTime()),
        sa.Column("next_slot", UtcDateTime()),
        sa.Column("changed_at", UtcDateTime(), nullable=False),
        sa.PrimaryKeyConstraint("prefix", "app", "entry", name="pk_singleton_schedule"),
        **MYSQL,
    )
