"""History as somebody looks around in it, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.browsing import Count, count, count_over_time, find
from celery_singleton_lock.ledger.queries import Filter
from celery_singleton_lock.ledger.tables import AttemptRow, RunRow

from .ledgers import DATABASES, ready_ledger, url_of

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(params=DATABASES)
def ledger(request: pytest.FixtureRequest) -> Iterator[Ledger]:
    ledger = ready_ledger(url_of(request.param, request))
    ledger.write(lambda connection: connection.execute(sa.insert(RunRow), rows()))
    yield ledger
    ledger.close()


def rows() -> list[dict[str, object]]:
    """One a minute, for two hours: every fifth was skipped, and one is somebody else's."""
    mine = [
        row_of(number, "singleton", "skipped" if number % 5 == 0 else "succeeded")
        for number in range(120)
    ]
    return [*mine, row_of(7, "another", "skipped")]


def row_of(number: int, prefix: str, status: str) -> dict[str, object]:
    return {
        "prefix": prefix,
        "run_id": f"run-{number:03}",
        "task": "shop.100%_Pay" if number == 42 else "shop.pay",
        "entry": f"entry-{number % 3}",
        "due_at": BEGIN + timedelta(minutes=number),
        "status": status,
        "reason": "overlap" if status == "skipped" else None,
        "stage": 1,
        "attempt": 1,
        "fence": 1,
        "worker": f"worker-{number % 2}@shop",
    }


def test_pages_have_numbers(ledger: Ledger) -> None:
    ids = [run.run_id for run in find(ledger, Filter(entry="entry-0"), skip=10, limit=3)]
    assert ids == ["run-087", "run-084", "run-081"]
    assert count(ledger, Filter(entry="entry-0"), at_most=100) == 40
    assert count(ledger, Filter(), at_most=100) == 100


@pytest.mark.parametrize(
    ("search", "found"), [("RUN-11", 10), ("worker-1", 60), ("100%_pay", 1), ("%", 1), ("nobody", 0)]
)
def test_text_is_looked_for_as_it_is(ledger: Ledger, search: str, found: int) -> None:
    assert count(ledger, Filter(), search, at_most=200) == found
    assert len(find(ledger, Filter(), search, limit=200)) == found


def test_time_is_counted_part_by_part(ledger: Ledger) -> None:
    counts = count_over_time(ledger, BEGIN, BEGIN + timedelta(hours=3), 3)
    hours = [BEGIN + timedelta(hours=hour) for hour in range(2)]
    assert sorted(counts, key=lambda each: (each.at, each.status)) == [
        Count(hour, status, reason, runs)
        for hour in hours
        for status, reason, runs in (("skipped", "overlap", 12), ("succeeded", None, 48))
    ]


def test_run_is_found_by_how_one_of_its_executions_ended(ledger: Ledger) -> None:
    def attempt(number: int, fence: int, outcome: str, prefix: str = "singleton") -> dict[str, object]:
        return {
            "prefix": prefix,
            "run_id": f"run-{number:03}",
            "attempt": 1,
            "fence": fence,
            "outcome": outcome,
            "ended_at": BEGIN,
        }

    attempts = [
        attempt(4, 1, "lost"),
        attempt(4, 2, "lost"),
        attempt(6, 1, "retried"),
        attempt(8, 1, "lost", "another"),
    ]
    ledger.write(lambda connection: connection.execute(sa.insert(AttemptRow), attempts))
    assert [run.run_id for run in find(ledger, Filter(ended_once="lost"))] == ["run-004"]
    assert count(ledger, Filter(ended_once="lost", entry="entry-0"), at_most=9) == 0
