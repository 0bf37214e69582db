"""The table of change streams, which has to be in the user's own database. docs/change-streams.md."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Mapped, mapped_column

from .columns import Name, Number
from .tables import MYSQL, TABLE_PREFIX, Base


class StreamShardRow(Base):
    """A shard of a stream, and the largest fence that was seen there. A stream has as many shards as
    it has rows."""

    __tablename__ = TABLE_PREFIX + "stream_shards"
    __table_args__: Any = (MYSQL,)

    prefix: Mapped[Name] = mapped_column(primary_key=True)
    name: Mapped[Name] = mapped_column(primary_key=True)
    shard: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    fence: Mapped[Number]
