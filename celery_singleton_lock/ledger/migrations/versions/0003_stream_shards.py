"""The shards of change streams."""

from typing import Final

import sqlalchemy as sa
from alembic import op

from celery_singleton_lock.ledger.tables import MYSQL

revision: Final = "0003"
down_revision: Final = "0002"

_name: Final = sa.String(255)


def upgrade() -> None:
    op.create_table(
        "singleton_stream_shards",
        sa.Column("prefix", _name, nullable=False),
        sa.Column("name", _name, nullable=False),
        sa.Column("shard", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("prefix", "name", "shard", name="pk_singleton_stream_shards"),
        **MYSQL,
    )
