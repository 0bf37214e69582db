"""The rows of the shop."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy import BigInteger, ForeignKey, String
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    type_annotation_map = {str: String(200)}  # noqa: RUF012 - as SQLAlchemy has it


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    region: Mapped[str]
    customer: Mapped[str]
    cents: Mapped[int]
    is_reconciled: Mapped[bool] = mapped_column(default=False)


class OrderChange(Base):
    """What happened to an order, for the warehouse to follow. Pending while `done_at` is NULL."""

    __tablename__ = "order_changes"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    what: Mapped[str]
    done_at: Mapped[datetime | None]


class Parcel(Base):
    """What the warehouse packed, once for each order."""

    __tablename__ = "parcels"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))


class Payment(Base):
    """As the bank tells it."""

    __tablename__ = "payments"

    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    cents: Mapped[int]


class Email(Base):
    """One for an order, whatever is repeated."""

    __tablename__ = "emails"

    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"), primary_key=True)
    address: Mapped[str]


class Report(Base):
    __tablename__ = "reports"

    region: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]
    fence: Mapped[int] = mapped_column(BigInteger)


class Export(Base):
    __tablename__ = "exports"

    day: Mapped[str] = mapped_column(primary_key=True)
    fence: Mapped[int] = mapped_column(BigInteger, default=0)


class Tally(Base):
    """How many orders there were, second by second."""

    __tablename__ = "tallies"

    id: Mapped[int] = mapped_column(primary_key=True)
    slot: Mapped[str]
    worker: Mapped[str]
    orders: Mapped[int]


class Note(Base):
    """What a worker says it did. One more for each time that it is done."""

    __tablename__ = "journal"

    id: Mapped[int] = mapped_column(primary_key=True)
    at: Mapped[str] = mapped_column(default=lambda: datetime.now(UTC).isoformat())
    worker: Mapped[str]
    what: Mapped[str]
    about: Mapped[str]
    run: Mapped[str]
    attempt: Mapped[int]
    fence: Mapped[int] = mapped_column(BigInteger)


class Sign(Base):
    """Something that came true: a day is over, the partner answers again."""

    __tablename__ = "signs"

    name: Mapped[str] = mapped_column(primary_key=True)
