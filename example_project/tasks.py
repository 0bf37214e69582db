"""What the shop does by itself. `base=SingletonTask` is all it takes; the rest is what each wants."""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import Any

from sqlalchemy import func, insert, select, update

from celery_singleton_lock import ChangeStream, SingletonTask, signals, streams

from .app import app
from .database import engine, new_session
from .models import Email, Export, Note, Order, OrderChange, Parcel, Payment, Report, Sign, Tally

logger = logging.getLogger(__name__)


@app.task(base=SingletonTask, bind=True, name="shop.tally", overlap="allow")
def tally(self: Any) -> None:
    """Counts the orders, once a second: exactly once, since the row and the end of the run commit
    together."""
    run = self.current_run
    with new_session() as session, run.transaction(session):
        orders = session.scalar(select(func.count()).select_from(Order)) or 0
        session.add(Tally(slot=run.slot.isoformat(), worker=_worker(self), orders=orders))


@app.task(base=SingletonTask, name="shop.reconcile", unique_on=(), expect_within=600)
def reconcile() -> None:
    """At night, never two at once. Longer than ten minutes, and somebody is told: see below."""
    with new_session() as session, session.begin():
        paid = select(Payment.order_id).where(Payment.cents == Order.cents)
        session.execute(update(Order).where(Order.id.in_(paid)).values(is_reconciled=True))


@signals.lease_overdue.connect
def tell_of_slowness(task: str, run: str, expected: Any, **_: object) -> None:
    logger.warning("%s takes longer than %s: run %s", task, expected, run)


@app.task(base=SingletonTask, bind=True, name="shop.report", unique_on=["region"])
def report(self: Any, region: str) -> None:
    """One at a time for a region; two regions do not wait for each other."""
    fence = self.current_run.fence
    with new_session() as session, session.begin():
        cents = session.scalar(select(func.sum(Order.cents)).where(Order.region == region)) or 0
        known = session.get(Report, region, with_for_update=True)
        if known is None:
            session.add(Report(region=region, cents=cents, fence=fence))
        elif known.fence < fence:
            known.cents, known.fence = cents, fence


@app.task(base=SingletonTask, bind=True, name="shop.export")
def export(self: Any, day: str) -> None:
    """Collects what is sold on a day until the day is over, and writes it down.

    It writes with its fence. One whose worker was stopped, and wakes up, cannot know how long that was:
    what it writes must not replace what its successor has written.
    """
    _note(self, "begins to export", day)
    while not _is_true(f"{day} is over"):
        time.sleep(0.05)
    is_written = _write_export(day, self.current_run.fence)
    _note(self, "has exported" if is_written else "is refused with its late export of", day)


def _write_export(day: str, fence: int) -> bool:
    """False: somebody with a larger fence has written it already."""
    with new_session() as session, session.begin():
        if session.get(Export, day) is None:
            session.add(Export(day=day))
            session.flush()
        later = update(Export).where(Export.day == day, Export.fence < fence).values(fence=fence)
        return session.execute(later).rowcount == 1  # type: ignore[attr-defined,no-any-return]


@app.task(
    base=SingletonTask, bind=True, name="shop.notify_partner",
    autoretry_for=(ConnectionError,), retry_backoff=1, max_retries=2,
)  # fmt: skip
def notify_partner(self: Any, invoice: str) -> None:
    """Needs a partner that answers. After three attempts somebody has to look at it."""
    _note(self, "tries to send", invoice)
    if not _is_true("the partner answers"):
        raise ConnectionError("the partner does not answer")
    _note(self, "has sent", invoice)


@app.task(base=SingletonTask, bind=True, name="shop.send_order_email")
def send_order_email(self: Any, order_id: int) -> None:
    """Called through the outbox. The mail is a row here: it commits with the end of the run."""
    with new_session() as session, self.current_run.transaction(session):
        order = session.get_one(Order, order_id)
        session.add(Email(order_id=order.id, address=order.customer))


@app.task(base=SingletonTask, name="shop.pack_parcels")
def pack_parcels(shard: int, shards: int) -> int:
    """The warehouse follows the changes of orders: those of one order one after the other, a shard by
    one worker at a time, and each exactly once, since parcels and marks commit together."""
    return order_changes().drain(_pack, shard=shard, shards=shards)


@cache
def order_changes() -> ChangeStream:
    pending = streams.TableChanges(engine(), OrderChange, key="order_id", done="done_at")
    return ChangeStream("orders", pending, app=app, shards=4)


def _pack(batch: Any) -> None:
    batch.connection.execute(
        insert(Parcel), [{"order_id": change.order_id} for change in batch.changes]
    )


def _note(task: Any, what: str, about: str) -> None:
    run = task.current_run
    with new_session() as session, session.begin():
        session.add(
            Note(
                worker=_worker(task),
                what=what,
                about=about,
                run=run.id,
                attempt=run.attempt,
                fence=run.fence,
            )
        )


def _is_true(sign: str) -> bool:
    with new_session() as session:
        return session.get(Sign, sign) is not None


def _worker(task: Any) -> str:
    name, _, _ = task.request.hostname.partition("@")
    return str(name)
