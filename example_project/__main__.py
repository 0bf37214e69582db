"""The shop's own commands.

::

    python -m example_project create-tables
    python -m example_project place-orders 10
    python -m example_project status
"""

from __future__ import annotations

import random

import click
from sqlalchemy import func, select

from celery_singleton_lock.ledger import required_ledger_of

from .app import app
from .database import engine, new_session
from .models import Base, Email, Order, Parcel, Report
from .orders import place_order


def make_tables() -> None:
    """Of the shop and of the ledger, where they are not there yet."""
    Base.metadata.create_all(engine())
    required_ledger_of(app).schema.upgrade()


@click.group()
def shop() -> None:
    """A small shop."""


@shop.command()
def create_tables() -> None:
    """Make the tables of the shop and of the ledger, where they are not there yet."""
    make_tables()
    click.echo("the tables are there")


@shop.command()
@click.argument("number", type=click.IntRange(1), default=1)
def place_orders(number: int) -> None:
    """Place orders, each with an e-mail that follows by the outbox."""
    with new_session() as session, session.begin():
        for _ in range(number):
            region, cents = random.choice(["eu", "us"]), random.randint(100, 10_000)
            place_order(session, region, "somebody@example.org", cents)
    click.echo(f"{number} placed")


@shop.command()
def status() -> None:
    """Say what there is."""
    with new_session() as session:
        for name, model in (("orders", Order), ("e-mails", Email), ("parcels", Parcel)):
            click.echo(f"{name:8} {session.scalar(select(func.count()).select_from(model))}")
        for report in session.scalars(select(Report)):
            click.echo(f"report of {report.region}: {report.cents / 100:.2f}")


if __name__ == "__main__":
    shop()
