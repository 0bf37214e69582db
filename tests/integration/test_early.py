"""The solo pool asks for the leases of a run before Celery is ready to begin with it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from celery import Celery
from celery.signals import task_prerun

from celery_singleton_lock import LeaseRequest, LeaseStore, RecordState, SingletonTask
from celery_singleton_lock.core.models import Answer
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of
from tests.end_to_end.beats import until

from .workers import LEAVES_CONNECTIONS, define, outcome_of, queued, unacknowledged, working

pytestmark = LEAVES_CONNECTIONS


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the store was asked, and when the answer was read."""
    events: list[str] = []
    start_acquire, acquire = LeaseStore.start_acquire, LeaseStore.acquire

    def start(store: LeaseStore, requests: Sequence[LeaseRequest]) -> Callable[[], list[Answer]]:
        answers = start_acquire(store, requests)
        events.append("early")

        def read() -> list[Answer]:
            events.append("read")
            return answers()

        return read

    def at_once(store: LeaseStore, requests: Sequence[LeaseRequest]) -> list[Answer]:
        events.append("asked")
        return acquire(store, requests)

    monkeypatch.setattr(LeaseStore, "start_acquire", start)
    monkeypatch.setattr(LeaseStore, "acquire", at_once)
    return events


def run_one(server: RedisServer, app: Celery, events: list[str], pool: str, **options: Any) -> str:
    @define(app, base=SingletonTask, name="t", ignore_result=True, **options)
    def body() -> None:
        events.append("body")

    run: str = body.delay().id
    with working(app, pool=pool, concurrency=1):
        until(lambda: queued(server) == 0 == unacknowledged(server) and "body" in events)
    return run


def test_leases_are_asked_for_once_and_ahead_in_the_solo_pool(
    server: RedisServer, app: Celery, asked: list[str]
) -> None:
    run = run_one(server, app, asked, "solo")
    assert asked == ["early", "read", "body"]
    assert outcome_of(app, run) == "succeeded"


def test_other_pools_ask_when_the_task_begins(
    server: RedisServer, app: Celery, asked: list[str]
) -> None:
    """Until one of its threads, or children, is free, a message may wait for long."""
    run_one(server, app, asked, "threads")
    assert asked == ["asked", "body"]


def test_nothing_is_asked_ahead_of_a_message_that_goes_at_once(
    server: RedisServer, app: Celery, asked: list[str]
) -> None:
    run_one(server, app, asked, "solo", acks_late=False)
    assert asked == ["asked", "body"]


def test_answer_that_has_waited_for_too_long_is_taken_back(
    server: RedisServer, app: Celery, asked: list[str]
) -> None:
    """It would have to be renewed before anybody keeps it alive, and a late one is as none."""
    app.conf.singleton_lock_ttl = 1

    def dawdle(**_: Any) -> None:
        time.sleep(0.3)

    task_prerun.connect(dawdle)
    try:
        run = run_one(server, app, asked, "solo")
    finally:
        task_prerun.disconnect(dawdle)
    assert asked == ["early", "read", "asked", "body"]
    assert outcome_of(app, run) == "succeeded"


def test_arguments_that_were_changed_on_the_way_are_another_job(
    server: RedisServer, app: Celery, asked: list[str]
) -> None:
    def change(kwargs: dict[str, Any], **_: Any) -> None:
        kwargs.pop("trace")

    keys: list[str] = []

    @define(app, base=SingletonTask, name="t", ignore_result=True)
    def body(job: int, trace: str = "") -> None:
        keys.extend(each.key for each in parts_of(app).keep_alive.leases)

    body.delay(job=1, trace="abc")
    task_prerun.connect(change)
    try:
        with working(app, pool="solo", concurrency=1):
            until(lambda: queued(server) == 0 == unacknowledged(server) and keys)
    finally:
        task_prerun.disconnect(change)
    assert asked == ["early", "read", "asked"]
    assert f"task:{body.singleton_unique.of((), {'job': 1})}" in keys
    assert not [each for each in parts_of(app).store.scan() if each.state is RecordState.HELD]


@pytest.mark.filterwarnings("ignore:Exception raised outside body:RuntimeWarning")
def test_leases_of_a_task_that_celery_did_not_begin_are_given_back(
    server: RedisServer, app: Celery, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    @define(app, base=SingletonTask, name="t", ignore_result=True)
    def body() -> None:
        asked.append("body")

    def fail(task_id: str, task: Any) -> None:
        raise RuntimeError("no task begins here")

    monkeypatch.setattr(app.loader, "on_task_init", fail)
    run = body.delay().id
    parts = parts_of(app)
    with working(app, pool="solo", concurrency=1):
        until(lambda: queued(server) == 0 == unacknowledged(server) and "read" in asked)
    assert outcome_of(app, run) == "failed"
    assert not [each for each in parts.store.scan() if each.state is RecordState.HELD]
    assert "body" not in asked


def test_task_waits_for_a_store_that_was_away_when_it_was_asked_ahead(
    server: RedisServer, app: Celery, asked: list[str]
) -> None:
    with RedisServer() as locks:
        app.conf.singleton_lock_url = locks.url

        @define(app, base=SingletonTask, name="t", ignore_result=True)
        def body() -> None:
            asked.append("body")

        parts_of(app).store.now()
        locks.kill()
        run = body.delay().id
        with working(app, pool="solo", concurrency=1):
            until(lambda: "asked" in asked)
            assert "body" not in asked
            locks.start()
            until(lambda: outcome_of(app, run) == "succeeded")
        assert asked.count("body") == 1
