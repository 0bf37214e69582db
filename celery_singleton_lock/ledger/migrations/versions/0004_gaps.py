"""What history lacks."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from celery_singleton_lock.ledger.columns import ROW_ID, UtcDateTime
from celery_singleton_lock.ledger.tables import MYSQL

revision: Final = "0004"
down_revision: Final = "0003"

_name: Final = sa.String(255)


def upgrade() -> None:
    op.create_table(
        "singleton_gaps",
        sa.Column("id", ROW_ID, nullable=False, autoincrement=True),
        sa.Column("prefix", _name, nullable=False),
        sa.Column("replica", _name, nullable=False),
        sa.Column("began_at", UtcDateTime(), nullable=False),
        sa.Column("ended_at", UtcDateTime(), nullable=False),
        sa.Column("facts", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_singleton_gaps"),
        sa.UniqueConstraint("prefix", "replica", "began_at", name="uq_singleton_gaps_gap"),
        **MYSQL,
    )
    op.create_index("ix_singleton_gaps_ended", "singleton_gaps", ["prefix", "ended_at", "id"])
