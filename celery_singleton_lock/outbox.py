"""Tasks that are sent if, and only if, your own transaction commits.

::

    from celery_singleton_lock import outbox

    with Session(engine) as session, session.begin():
        session.add(order)
        outbox.send(session, confirm_order, kwargs={"order_id": 7}, key="order:7")
"""

from __future__ import annotations

import sqlalchemy as sa

from celery_singleton_lock.ledger.outbox_tables import OutboxLaneRow, OutboxRow
from celery_singleton_lock.ledger.tables import add_tables_to
from celery_singleton_lock.recovery.outbox.relay import Relay
from celery_singleton_lock.recovery.outbox.sending import send

__all__ = ["OutboxLaneRow", "OutboxRow", "Relay", "add_tables", "send"]


def add_tables(metadata: sa.MetaData) -> None:
    """Make the tables of the outbox part of your own metadata, so that ``create_all`` makes them and
    Alembic's autogenerate writes their migrations, now and when a later version changes them."""
    add_tables_to(metadata, OutboxRow, OutboxLaneRow)
