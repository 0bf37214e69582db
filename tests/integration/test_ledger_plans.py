"""How databases answer questions about history: from an index, by their own account."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
import sqlalchemy as sa

from benchmarks.ledger import PREFIX, asked, questions
from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.queries import Queries
from celery_singleton_lock.ledger.tables import RunRow
from celery_singleton_lock.testing.servers import PostgresServer

from .ledgers import DATABASES, ready_ledger, url_of

ROWS: Final = 6_000
"""Enough for a planner to see that to read all would be the dearer way."""
INDEXES: Final = {
    "the newest": {"ix_singleton_runs_due"},
    "a page in the middle": {"ix_singleton_runs_due"},
    "of an entry": {"ix_singleton_runs_entry"},
    "failed ones of a task": {"ix_singleton_runs_task", "ix_singleton_runs_status"},
    "missed": {"ix_singleton_runs_status"},
    "slowest": {"ix_singleton_runs_duration"},
    "the last 20 of each of 100 entries": {"ix_singleton_runs_entry"},
    "one run": {"uq_singleton_runs_run", "sqlite_autoindex_singleton_runs_1"},
}
"""By which a question may be answered: in its order, or down to a few runs. By any other all of an
application are read."""


@contextmanager
def filled(url: str) -> Iterator[Ledger]:
    ledger = ready_ledger(url, prefix=PREFIX)
    now = datetime.now(UTC)
    ledger.write(lambda c: c.execute(sa.insert(RunRow), [_row(n, now) for n in range(ROWS)]))
    table = " TABLE" if ledger.database.dialect.name == "mysql" else ""
    ledger.write(lambda connection: connection.execute(sa.text(f"ANALYZE{table} singleton_runs")))
    yield ledger
    ledger.write(lambda connection: connection.execute(sa.delete(RunRow)))
    ledger.close()


def _row(n: int, now: datetime) -> dict[str, Any]:
    due = now - n * timedelta(minutes=3)
    status = "failed" if n % 100 == 0 else "missed" if n % 1000 == 1 else "succeeded"
    return {
        "prefix": PREFIX, "run_id": f"run-{n}", "task": f"task-{n % 20}", "entry": f"entry-{n % 200}",
        "slot": due, "due_at": due, "status": status, "stage": n, "attempt": 1, "fence": n,
        "worker": "w", "started_at": due, "ended_at": due, "lag_s": 0.1, "duration_s": n * 7 % 100,
    }  # fmt: skip


@pytest.fixture(scope="module", params=DATABASES)
def ledger(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ledger]:
    is_file = request.param == "sqlite"
    file = f"sqlite:///{tmp_path_factory.mktemp('plans')}/ledger.db"
    with filled(file if is_file else url_of(request.param, request)) as ledger:
        yield ledger


@pytest.mark.parametrize("question", INDEXES)
def test_no_question_reads_the_whole_history(ledger: Ledger, question: str) -> None:
    every = questions(Queries(ledger))
    assert every.keys() == INDEXES.keys()
    statement, parameters = asked(ledger, every[question])
    used = _indexes_used(ledger, statement, parameters)
    assert used
    assert used <= INDEXES[question]


def _indexes_used(ledger: Ledger, statement: str, parameters: Any) -> set[str | None]:
    """By the steps that read runs; None: by none."""
    database = ledger.database.dialect.name
    explain = "EXPLAIN QUERY PLAN" if database == "sqlite" else "EXPLAIN"
    with ledger.database.engine.connect() as connection:
        steps = connection.exec_driver_sql(f"{explain} {statement}", parameters).all()
    if database == "mysql":
        return {step.key for step in steps if step.table == "singleton_runs"}
    texts = [str(step) for step in steps if "singleton_runs" in str(step)]
    return {
        found[0]
        if (found := re.search(r"(?:ix|uq|sqlite_autoindex)_singleton_runs_\w+", text))
        else None
        for text in texts
        if any(word in text for word in ("Scan", "SCAN", "SEARCH"))
    }


def test_of_the_last_runs_of_entries_no_others_are_read(postgres: PostgresServer) -> None:
    entries = [f"entry-{number}" for number in range(100)]
    with filled(postgres.url) as ledger:
        statement, parameters = asked(ledger, lambda: Queries(ledger).last_of(entries, 5))
        with ledger.database.engine.connect() as connection:
            explain = f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}"
            [told] = connection.exec_driver_sql(explain, parameters).scalar_one()
    [walk] = [each for each in _nodes(told["Plan"]) if each.get("Relation Name") == "singleton_runs"]
    assert walk["Index Name"] == "ix_singleton_runs_entry"
    # A short walk for each, which ends when it has as many as were asked for.
    assert (walk["Actual Loops"], walk["Actual Rows"]) == (100, 5)


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for each in plan.get("Plans", ()):
        yield from _nodes(each)
