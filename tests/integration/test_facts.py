"""What a worker tells those who listen: each fact once, from whichever of its processes knows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.core.facts import (
    CopyIgnored,
    DeadLettered,
    Fact,
    RunEnded,
    RunName,
    RunSkipped,
    RunStarted,
)
from celery_singleton_lock.observability.listening import listeners_of
from celery_singleton_lock.testing.servers import RedisServer
from tests.end_to_end.beats import until

from .workers import Gate, define, unacknowledged, working

WITHIN = 20
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def told(app: Celery) -> list[Fact]:
    told: list[Fact] = []
    listeners_of(app).add(told.append)
    return told


def outcomes(told: list[Fact]) -> list[str]:
    return [fact.outcome for fact in told if isinstance(fact, RunEnded)]


def test_run_is_told_when_it_starts_and_when_it_is_over(app: Celery, told: list[Fact]) -> None:
    @define(app, base=SingletonTask, name="t")
    def body() -> None: ...

    beats = {"singleton_entry": "nightly", "singleton_slot": "2026-01-02T03:00:00Z"}
    with working(app):
        run = body.apply_async(headers=beats).id
        until(lambda: outcomes(told) == ["succeeded"])
    started, ended = told
    assert isinstance(started, RunStarted)
    assert isinstance(ended, RunEnded)
    name = RunName(run, "t", "nightly", datetime(2026, 1, 2, 3, tzinfo=UTC))
    assert started.run == ended.run == name
    assert (started.attempt, started.takeovers, started.fence) == (1, 0, ended.fence)
    assert ended.took is not None
    assert started.at <= ended.at


def test_retry_is_an_end_with_its_reason_and_the_next_attempt_a_start(
    app: Celery, told: list[Fact]
) -> None:
    @define(app, base=SingletonTask, bind=True, name="t", max_retries=1, dead_letter=False)
    def body(self: Any) -> None:
        raise self.retry(exc=OSError("redis://user:secret@host is away"), countdown=0.1)

    with working(app):
        body.delay()
        until(lambda: outcomes(told) == ["retried", "failed"])
    first, last = (fact for fact in told if isinstance(fact, RunEnded))
    assert [fact.attempt for fact in told if isinstance(fact, RunStarted)] == [1, 2]
    assert first.retry_in is not None
    assert first.retry_in.total_seconds() == pytest.approx(0.1, abs=0.1)
    assert "OSError" in (first.error or "")
    assert "secret" not in (first.error or "")
    assert "OSError" in (last.error or "")


def test_letter_is_told_after_the_end_that_owes_it(app: Celery, told: list[Fact]) -> None:
    @define(app, base=SingletonTask, name="t")
    def body() -> None:
        raise ValueError("no")

    with working(app):
        run = body.delay().id
        until(lambda: any(isinstance(fact, DeadLettered) for fact in told))
    [_, ended, letter] = told
    assert outcomes([ended]) == ["failed, letter due"]
    assert isinstance(letter, DeadLettered)
    assert letter.run is not None
    assert (letter.run.id, letter.run.task, letter.reason) == (run, "t", "failed")
    assert letter.letter["exception"] == "ValueError: no"


def test_skip_and_copy_are_told_and_are_no_ends(
    app: Celery, told: list[Fact], server: RedisServer
) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t", unique_on=())
    def body() -> None:
        gate.enter()

    with working(app):
        first = body.delay().id
        assert gate.wait_for_entry()
        second = body.delay().id
        until(lambda: any(isinstance(fact, RunSkipped) for fact in told))
        gate.open()
        until(lambda: outcomes(told) == ["succeeded"])
        body.apply_async(task_id=first)
        until(lambda: any(isinstance(fact, CopyIgnored) for fact in told))
        until(lambda: unacknowledged(server) == 0)
    [skipped] = [fact for fact in told if isinstance(fact, RunSkipped)]
    [copy] = [fact for fact in told if isinstance(fact, CopyIgnored)]
    assert (skipped.run.id, skipped.reason) == (second, "overlap")
    assert (copy.run.id, copy.outcome) == (first, "succeeded")
    assert len(told) == 4
