"""A worker with a ledger writes down what becomes of its runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.ledger import required_ledger_of
from celery_singleton_lock.ledger.queries import PastRun, Queries
from celery_singleton_lock.testing.servers import RedisServer

from .workers import Gate, define, new_app, working


@pytest.fixture
def app(valkey: RedisServer, tmp_path: Path) -> Iterator[Celery]:
    client: Any = valkey.connect()
    client.flushall()
    app = new_app(valkey, singleton_database_url=f"sqlite:///{tmp_path}/ledger.db")
    required_ledger_of(app).schema.upgrade()
    yield app
    required_ledger_of(app).close()
    client.flushall()


def past(app: Celery, run_id: str) -> PastRun | None:
    return Queries(required_ledger_of(app)).run(run_id)


def test_runs_that_succeed_retry_fail_and_are_skipped_are_in_history(app: Celery) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, bind=True, max_retries=1, unique_on=(), overlap="skip")
    def report(self: Any, what: str) -> str:
        if what == "wait":
            gate.enter()
        if what == "retry" and self.request.retries == 0:
            raise self.retry(exc=OSError("no"), countdown=0)
        if what == "fail":
            raise ValueError("never")
        return "done"

    with working(app):
        assert report.delay("succeed").get(timeout=20) == "done"
        retried = report.delay("retry")
        assert retried.get(timeout=20) == "done"
        failed = report.delay("fail")
        with pytest.raises(ValueError, match="never"):
            failed.get(timeout=20)
        waiting = report.delay("wait")
        assert gate.wait_for_entry()
        skipped = report.delay("skip me")
        skipped.get(timeout=20)
        gate.open()
        waiting.get(timeout=20)
    # Written when the worker ends, at the latest.
    run = past(app, retried.id)
    assert run is not None
    assert (run.status, run.attempt) == ("succeeded", 2)
    [first, second] = Queries(required_ledger_of(app)).attempts(retried.id)
    assert (first.outcome, first.error) == ("retried", "OSError: no")
    assert second.outcome == "succeeded"
    dead, passed_over = past(app, failed.id), past(app, skipped.id)
    assert dead is not None
    assert (dead.status, dead.reason) == ("dead", "failed")
    assert "never" in (dead.error or "")
    assert passed_over is not None
    assert (passed_over.status, passed_over.reason) == ("skipped", "overlap")
