"""The schedule in the ledger: kept as beat has it, by one replica; and runs that wait are due there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_singleton_lock import SingletonScheduler, open_schedule
from celery_singleton_lock.beat import showing
from celery_singleton_lock.core import facts
from celery_singleton_lock.ledger import Ledger, required_ledger_of
from celery_singleton_lock.ledger.due_runs import forget_due
from celery_singleton_lock.ledger.happenings import News, Status
from celery_singleton_lock.ledger.queries import Filter, Queries
from celery_singleton_lock.ledger.schedule_table import ScheduledEntry, ScheduleTable
from celery_singleton_lock.ledger.writing import write_news
from celery_singleton_lock.testing.servers import RedisServer

from .ledgers import DATABASES, ready_ledger, url_of

SLOT = datetime(2026, 5, 1, 12, tzinfo=UTC)
NIGHTLY = ScheduledEntry(
    entry="nightly",
    task="shop.report",
    schedule="<crontab: 0 3 * * * (m/h/dM/MY/d)>",
    is_added=False,
    is_paused=False,
    last_slot=SLOT,
    next_slot=SLOT + timedelta(days=1),
)


@pytest.fixture(params=DATABASES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    ledger = ready_ledger(url_of(request.param, request))
    yield ledger
    ledger.close()


def test_table_says_what_it_is_shown_and_nothing_else(ledger: Ledger) -> None:
    table, other = ScheduleTable(ledger, "shop"), ScheduleTable(ledger, "bank")
    hourly = replace(NIGHTLY, entry="hourly", is_added=True, is_paused=True, paused_by="ann")
    other.show([NIGHTLY])
    assert table.show([NIGHTLY, hourly]) == {"nightly", "hourly"}
    assert table.read() == [hourly, NIGHTLY]
    later = replace(NIGHTLY, last_slot=NIGHTLY.next_slot, next_slot=None)
    assert table.show([later]) == {"nightly", "hourly"}
    assert ScheduleTable(ledger, "shop").read() == [later]
    # Whoever comes after it finds what is there.
    assert ScheduleTable(ledger, "shop").show([hourly]) == {"nightly", "hourly"}
    assert table.read() == [hourly]
    assert other.read() == [NIGHTLY]


def test_many_entries_are_shown_and_only_changes_are_written(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ScheduleTable(ledger, "shop")
    entries = [replace(NIGHTLY, entry=f"entry-{number:04}") for number in range(1200)]
    table.show(entries)
    assert table.read() == entries
    monkeypatch.setattr(ledger, "write", lambda _: pytest.fail("there is nothing to write"))
    table.show(entries)


def test_run_that_is_due_is_overtaken_by_all_that_is_told_of_it(ledger: Ledger) -> None:
    names = [facts.RunName(f"run-{number}", "t", "nightly", SLOT) for number in range(3)]
    due = facts.SlotsDue(at=SLOT, runs=tuple(names), replica="beat")
    published = facts.SlotsPublished(at=SLOT, runs=(names[0],), replica="beat")
    missed = facts.SlotMissed(at=SLOT, run=names[1], reason="too old")
    for order in ([due, published, missed], [published, missed, due]):
        for fact in order:
            news = News()
            news.add(fact)
            write_news(ledger, news)
        statuses = [run.status for run in Queries(ledger).runs().runs]
        assert sorted(statuses) == [Status.DUE, Status.MISSED, Status.PUBLISHED]
    assert forget_due(ledger, lambda entry, slot: (entry, slot) != ("nightly", SLOT)) == 0
    assert forget_due(ledger, lambda entry, slot: (entry, slot) == ("nightly", SLOT)) == 1
    assert len(Queries(ledger).runs().runs) == 2


# As beat does it


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing.Showing, "LOOK_UP_S", 0.02)
    monkeypatch.setattr(showing.Showing, "EVERY_S", 0.1)
    monkeypatch.setattr(showing.Showing, "SHARE", 1)
    monkeypatch.setattr(showing, "LATE", timedelta(seconds=1))


@pytest.fixture
def new_app(tmp_path: Path, broker: RedisServer, valkey: RedisServer) -> Callable[..., Celery]:
    valkey.connect().flushdb()

    def new_app(**schedule: Any) -> Celery:
        app = Celery("shop", broker=broker.url, set_as_current=False)
        app.conf.update(
            singleton_lock_url=valkey.url,
            singleton_database_url=f"sqlite:///{tmp_path}/ledger.db",
            singleton_slot_ttl=0.5,
            beat_schedule=schedule,
            broker_connection_timeout=1,
        )
        required_ledger_of(app).schema.upgrade()
        return app

    return new_app


class Replica:
    def __init__(self, app: Celery) -> None:
        self.app = app
        self.scheduler = SingletonScheduler(app)
        self.table = ScheduleTable(required_ledger_of(app), "shop")

    def shown(self) -> dict[str, ScheduledEntry]:
        # Celery adds one of its own.
        return {each.entry: each for each in self.table.read() if not each.entry.startswith("celery.")}

    def due(self) -> list[Any]:
        found = Queries(required_ledger_of(self.app)).runs(Filter(statuses=[Status.DUE]))
        return [run.slot for run in found.runs]


def tick_until(fact: Callable[[], Any], *replicas: Replica) -> None:
    give_up_at = time.monotonic() + 30
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        waits = [each.scheduler.tick() for each in replicas]
        time.sleep(min(*waits, 0.05))


YEARLY = {"task": "shop.report", "schedule": crontab(minute=0, hour=0, day_of_month=1, month_of_year=1)}
SECONDLY = {"task": "shop.tick", "schedule": 1.0}


def test_what_is_said_at_run_time_is_in_the_table(new_app: Callable[..., Celery]) -> None:
    beat = Replica(new_app(yearly=YEARLY))
    tick_until(lambda: beat.shown().get("yearly"), beat)
    yearly = beat.shown()["yearly"]
    assert (yearly.task, yearly.is_added, yearly.is_paused) == ("shop.report", False, False)
    assert yearly.schedule.startswith("<crontab: 0 0 1 1 *")
    year = datetime.now(UTC).year + 1
    tick_until(lambda: beat.shown()["yearly"].next_slot == datetime(year, 1, 1, tzinfo=UTC), beat)
    schedule = open_schedule(beat.app, by="ann")
    schedule.add("hourly", "shop.hour", 3600.0)
    schedule.pause("yearly", "not this year")
    tick_until(lambda: beat.shown()["yearly"].is_paused and "hourly" in beat.shown(), beat)
    assert beat.shown()["hourly"].is_added
    paused = beat.shown()["yearly"]
    assert (paused.paused_by, paused.paused_why, paused.next_slot) == ("ann", "not this year", None)
    schedule.remove("hourly")
    tick_until(lambda: list(beat.shown()) == ["yearly"], beat)
    beat.scheduler.close()


def test_slots_that_cannot_be_published_are_due_until_they_are(
    new_app: Callable[..., Celery], broker: RedisServer
) -> None:
    beat = Replica(new_app(secondly=SECONDLY))
    tick_until(lambda: beat.shown().get("secondly"), beat)
    assert beat.due() == []
    broker.kill()
    tick_until(lambda: len(beat.due()) >= 2, beat)
    waited = beat.due()
    broker.restart()
    queries = Queries(required_ledger_of(beat.app))

    def statuses() -> set[Status | None]:
        known = {run.slot: run.status for run in queries.runs(Filter(entry="secondly")).runs}
        return {known.get(slot) for slot in waited}

    tick_until(lambda: statuses() == {Status.PUBLISHED}, beat)
    # One that was paused meanwhile is not due any more, and nobody tells what became of it.
    broker.kill()
    tick_until(beat.due, beat)
    open_schedule(beat.app).pause("secondly")
    tick_until(lambda: not beat.due(), beat)
    beat.scheduler.close()
    broker.restart()


def test_the_replica_that_started_last_shows_its_schedule(new_app: Callable[..., Celery]) -> None:
    old = Replica(new_app(yearly=YEARLY, gone=YEARLY))
    tick_until(lambda: sorted(old.shown()) == ["gone", "yearly"], old)
    new = Replica(new_app(yearly=YEARLY, more=YEARLY))
    tick_until(lambda: sorted(old.shown()) == ["more", "yearly"], old, new)
    new.scheduler.close()
    tick_until(lambda: sorted(old.shown()) == ["gone", "yearly"], old)
    old.scheduler.close()
