"""What the shop does. Nothing in here needs a server."""

from __future__ import annotations

import pytest
from celery.exceptions import Retry
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from example_project import tasks
from example_project.app import app
from example_project.models import Email, Export, Note, Order, Parcel, Report, Sign
from example_project.orders import place_order


def count(session: Session, model: type[object]) -> int:
    return session.scalar(select(func.count()).select_from(model)) or 0


def test_order_and_its_email_commit_together(session: Session) -> None:
    with session.begin():
        place_order(session, "eu", "ann@example.org", 100)
    assert (count(session, Order), count(session, Email)) == (1, 1)


def test_order_that_does_not_commit_sends_nothing(session: Session) -> None:
    place_order(session, "eu", "ann@example.org", 100)
    session.rollback()
    assert (count(session, Order), count(session, Email)) == (0, 0)


def test_report_is_of_its_region(session: Session) -> None:
    with session.begin():
        for region, cents in (("eu", 100), ("eu", 20), ("us", 3)):
            place_order(session, region, "ann@example.org", cents)
    tasks.report.apply(("eu",)).get()
    assert session.get_one(Report, "eu").cents == 120


def test_report_of_one_who_comes_late_is_not_written(session: Session) -> None:
    with session.begin():
        session.add(Report(region="eu", cents=7, fence=2**62))
    tasks.report.apply(("eu",)).get()
    session.expire_all()
    assert session.get_one(Report, "eu").cents == 7


def test_export_of_one_who_comes_late_is_refused(session: Session) -> None:
    with session.begin():
        session.add_all([Sign(name="monday is over"), Export(day="monday", fence=2**62)])
    tasks.export.apply(("monday",)).get()
    said = [note.what for note in session.scalars(select(Note).order_by(Note.id))]
    assert said == ["begins to export", "is refused with its late export of"]


def test_orders_are_reconciled_with_what_was_paid(session: Session) -> None:
    with session.begin():
        place_order(session, "eu", "ann@example.org", 100)
    tasks.reconcile.apply().get()
    [order] = session.scalars(select(Order))
    assert order.is_reconciled


def test_every_order_is_packed_once(session: Session) -> None:
    with session.begin():
        for _ in range(6):
            place_order(session, "eu", "ann@example.org", 100)
    for _ in range(2):
        for shard in range(4):
            tasks.pack_parcels.apply(kwargs={"shard": shard, "shards": 4}).get()
    packed = session.scalars(select(Parcel.order_id).order_by(Parcel.order_id)).all()
    assert packed == [1, 2, 3, 4, 5, 6]


def test_partner_that_does_not_answer_is_tried_again() -> None:
    with pytest.raises(Retry):
        tasks.notify_partner.apply(("invoice 7",), throw=True)


def test_two_regions_are_two_jobs_and_reconciling_is_one() -> None:
    report, reconcile = app.tasks["shop.report"], app.tasks["shop.reconcile"]
    assert report.singleton_unique.of(("eu",), {}) != report.singleton_unique.of(("us",), {})
    assert reconcile.singleton_unique.of((), {}) == "shop.reconcile"
