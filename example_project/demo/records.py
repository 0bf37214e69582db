"""What the shop's processes left in its database, and what the demo writes there to move them on."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import func, select

from example_project.database import new_session
from example_project.models import Email, Export, Note, Order, Sign, Tally
from example_project.orders import place_order


class Work(NamedTuple):
    """A row of the journal: what a worker says it did."""

    at: datetime
    worker: str
    what: str
    about: str
    run: str
    attempt: int
    fence: int


class Count(NamedTuple):
    """An execution of the tally of a second."""

    slot: datetime
    worker: str


def journal() -> list[Work]:
    with new_session() as session:
        return [
            Work(
                datetime.fromisoformat(note.at),
                note.worker, note.what, note.about, note.run, note.attempt, note.fence,
            )
            for note in session.scalars(select(Note).order_by(Note.id))
        ]  # fmt: skip


def counts() -> list[Count]:
    with new_session() as session:
        rows = session.execute(select(Tally.slot, Tally.worker).order_by(Tally.id))
        return [Count(datetime.fromisoformat(slot), worker) for slot, worker in rows]


def set_sign(name: str) -> None:
    with new_session() as session, session.begin():
        session.merge(Sign(name=name))


def fence_of_export(day: str) -> int:
    with new_session() as session:
        return session.get_one(Export, day).fence


def order(number: int) -> None:
    with new_session() as session, session.begin():
        for each in range(number):
            place_order(session, "eu", f"customer-{each}@example.org", 100 + each)


def orders_and_emails() -> tuple[int, int]:
    with new_session() as session:
        orders = session.scalar(select(func.count()).select_from(Order)) or 0
        return orders, session.scalar(select(func.count()).select_from(Email)) or 0
