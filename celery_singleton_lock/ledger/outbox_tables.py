"""The tables of the outbox, which may be in the user's own database. docs/outbox.md explains them."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from .columns import LongText, Name, Number, RowId, Time, Word
from .tables import MYSQL, TABLE_PREFIX, Base

PENDING: Final = "pending"
HELD: Final = "held"
"""Refused by the broker, and tried again at `retry_at`: until then all of its key waits."""
PUBLISHED: Final = "published"
DEAD: Final = "dead"
"""Refused too often: it is among the dead letters."""


class OutboxRow(Base):
    """A message that is to be published if, and only if, the transaction that wrote it commits."""

    __tablename__ = TABLE_PREFIX + "outbox"
    __table_args__: Any = (
        sa.Index("ix_singleton_outbox_lane", "prefix", "state", "lane", "id"),
        # An id is never used again: what is published next has a greater one.
        {**MYSQL, "sqlite_autoincrement": True},
    )

    id: Mapped[RowId]
    prefix: Mapped[Name]
    state: Mapped[Word]
    lane: Mapped[int]
    key: Mapped[Name | None]
    task: Mapped[Name]
    task_id: Mapped[Name]
    message: Mapped[LongText]
    created_at: Mapped[Time]
    tries: Mapped[int]
    retry_at: Mapped[Time | None]
    published_at: Mapped[Time | None]
    error: Mapped[LongText | None]


class OutboxLaneRow(Base):
    """What is locked: a lane by the relay that works it, and on MySQL keys by those who send."""

    __tablename__ = TABLE_PREFIX + "outbox_lanes"
    __table_args__: Any = (MYSQL,)

    prefix: Mapped[Name] = mapped_column(primary_key=True)
    lane: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[Number]
    """Grows with each claim. Of use where rows cannot be locked; `until` is when a claim runs out."""
    until: Mapped[Time | None]
