"""The pages in Flower with a ledger: runs of which Flower itself has never heard."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from playwright.sync_api import expect

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.ledger import Ledger, open_ledger
from celery_singleton_lock.ledger.happenings import Status
from celery_singleton_lock.ledger.queries import Filter, Queries
from celery_singleton_lock.ledger.tables import RunRow
from celery_singleton_lock.signals import lease_lost
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of
from tests.integration.workers import Gate, define, working
from tests.support import until

from .flower_shop import open_shop
from .flowers import FlowerServer, Visitor, browsing

pytestmark = pytest.mark.xdist_group("flower")


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = open_ledger(f"sqlite:///{tmp_path}/ledger.db")
    ledger.schema.upgrade()
    yield ledger
    ledger.close()


def remember(ledger: Ledger, number: int, status: str, reason: str | None = None) -> None:
    due = datetime.now(UTC) - timedelta(minutes=number)
    row = {
        "prefix": ledger.prefix,
        "run_id": f"past-{number}",
        "task": "shop.stock",
        "entry": "stock: count",
        "slot": due,
        "due_at": due,
        "status": status,
        "reason": reason,
        "stage": 1,
        "attempt": 1,
        "fence": 1,
        "worker": "w@shop",
        "started_at": None if status in ("missed", "published") else due + timedelta(seconds=1),
        "ended_at": due + timedelta(seconds=3) if status in ("succeeded", "failed", "dead") else None,
        "lag_s": None if status in ("missed", "published") else 1.0,
        "duration_s": 2.0 if status in ("succeeded", "failed", "dead") else None,
        "error": "ValueError: no stock" if status == "failed" else None,
    }
    ledger.write(lambda connection: connection.execute(sa.insert(RunRow), [row]))


def test_pages_show_the_past_and_bear_its_loss(ledger: Ledger) -> None:
    said = ("succeeded", "failed", "dead", "missed", "published", "running", "retrying")
    for number, status in enumerate(said):
        remember(ledger, number + 1, status)
    remember(ledger, len(said) + 1, "skipped", "overlap")
    with (
        RedisServer() as redis,
        FlowerServer(redis.url, database=ledger.database.url) as flower,
        browsing() as browser,
    ):
        visitor = Visitor(browser, flower, viewport={"width": 1280, "height": 900})
        page = visitor.open("/singleton/schedule?search=stock")
        strip = visitor.row("stock: count").locator(".singleton-cell")
        expect(strip).to_have_count(8)
        expect(strip.first).to_have_class("singleton-cell singleton-skipped")
        expect(strip.last).to_have_class("singleton-cell singleton-succeeded")
        expect(page.locator("#singleton-note")).not_to_contain_text("Flower saw itself")

        visitor.open("/singleton/runs")
        expect(page.locator("#singleton-info")).to_have_text("Showing 1 to 8 of 8")
        expect(visitor.row("past-2")).to_contain_text("ValueError: no stock")
        page.get_by_role("button", name="Dead", exact=True).click()
        expect(page.locator("#singleton-info")).to_have_text("Showing 1 to 1 of 1")
        expect(visitor.row("past-3")).to_contain_text("dead letter")

        visitor.open("/singleton/entry?name=stock%3A%20count")
        expect(page.locator("#singleton-took rect")).to_have_count(3)
        visitor.open("/singleton/locks")
        expect(page.locator("#singleton-contention .singleton-skipped")).to_have_count(1)

        visitor.open("/singleton/schedule?search=stock")
        ledger.write(lambda connection: connection.execute(sa.text("DROP TABLE singleton_runs")))
        expect(page.locator("#singleton-note")).to_contain_text("The history of runs cannot be read")
        expect(page.locator("#singleton-status")).to_have_text("Live")
        expect(visitor.row("stock: count")).to_be_visible()
        visitor.leave()


def test_run_that_lost_its_lease_is_found_after_its_successor_has_ended_it(ledger: Ledger) -> None:
    gate, lost = Gate(), threading.Event()
    which = Filter(ended_once="lost", statuses=[Status.SUCCEEDED])

    def tell(**_: Any) -> None:
        lost.set()

    lease_lost.connect(tell)
    with RedisServer() as redis:
        app = open_shop(redis.url, database=ledger.database.url)

        @define(app, base=SingletonTask, name="shop.exclusive", unique_on=(), lock_ttl=3)
        def exclusive() -> None:
            gate.enter()

        with working(app), gate:
            run = exclusive.apply_async()
            assert gate.wait_for_entry()
            parts_of(app).store.force_release(f"run:{run.id}", who="test", why="to lose it")
            assert lost.wait(20)
            gate.open()
            until(lambda: Queries(ledger).runs(which).runs)
        with FlowerServer(redis.url, database=ledger.database.url) as flower, browsing() as browser:
            visitor = Visitor(browser, flower)
            page = visitor.open("/singleton/runs?show=lost")
            expect(visitor.row(run.id[:8])).to_contain_text("succeeded")
            expect(visitor.row(run.id[:8])).to_contain_text("an execution lost its lease")
            expect(page.locator("#singleton-info")).to_have_text("Showing 1 to 1 of 1")
            page.get_by_role("button", name="Missed", exact=True).click()
            expect(page.locator("#singleton-table")).to_contain_text("Nothing matches.")
            visitor.leave()
