"""A run that fails for good is among the dead letters before its message is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from celery import Celery
from celery.exceptions import Reject

from celery_singleton_lock import (
    FINISHED,
    LeaseRequest,
    Release,
    SingletonTask,
    StoreUnavailable,
    dead_letters_of,
    signals,
)
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of
from celery_singleton_lock.worker.run import LETTER_DUE
from tests.end_to_end.beats import until

from .workers import (
    LEAVES_CONNECTIONS,
    define,
    outcome_of,
    queued,
    record_of,
    unacknowledged,
    working,
)

WITHIN = 20
pytestmark = LEAVES_CONNECTIONS


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ValueError("no"), "failed"),
        (Reject("bad", requeue=False), "rejected"),
        (MemoryError("too much"), "out_of_memory"),
    ],
)
def test_run_that_failed_for_good_has_a_letter_and_is_over(
    app: Celery, server: RedisServer, error: Exception, reason: str
) -> None:
    told: list[Any] = []

    @define(app, base=SingletonTask, bind=True, name="t", max_retries=1, retry_backoff=1)
    def body(self: Any) -> None:
        if self.request.retries == 0:
            self.retry(countdown=0.1)
        raise error

    signals.run_dead_lettered.connect(on_letter := lambda letter: told.append(letter))
    with working(app, pool="solo"):
        result = body.delay()
        until(lambda: outcome_of(app, result.id) == "failed")
        until(lambda: unacknowledged(server) == 0 and queued(server) == 0)
        [letter] = dead_letters_of(app).list()
        body.apply_async(task_id=result.id)  # a copy
        until(lambda: unacknowledged(server) == 0 and queued(server) == 0)
        assert len(dead_letters_of(app).list()) == 1
    signals.run_dead_lettered.disconnect(on_letter)
    assert (letter.reason, letter.run_id, letter.attempts) == (reason, result.id, 2)
    assert str(error.args[0]) in letter.exception
    assert "raise error" in letter.traceback or reason == "rejected"
    assert [each.id for each in told] == [letter.id]
    record = record_of(app, f"run:{result.id}")
    assert record is not None
    assert record.position == FINISHED


def test_letter_that_was_owed_by_a_dead_worker_is_sent_by_the_next(
    app: Celery, server: RedisServer
) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t")
    def body() -> None:
        calls.append(1)

    store = parts_of(app).store
    [granted] = store.acquire([LeaseRequest("run:r", "dead", timedelta(seconds=5), position=1)])
    store.release([Release(granted.lease, 1, LETTER_DUE)])  # type: ignore[union-attr]
    with working(app):
        for _ in range(3):
            body.apply_async(task_id="r")
        until(lambda: outcome_of(app, "r") == "failed")
        until(lambda: unacknowledged(server) == 0 and queued(server) == 0)
    assert [letter.run_id for letter in dead_letters_of(app).list()] == ["r"]
    assert calls == []


def test_replayed_run_has_a_fresh_start_and_twice_is_once(app: Celery, server: RedisServer) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t")
    def body() -> int:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("no")
        return len(calls)

    with working(app):
        result = body.delay()
        until(lambda: len(dead_letters_of(app).list()) == 1)
        [letter] = dead_letters_of(app).list()
        dead_letters_of(app).replay(everything=True)
        until(lambda: len(calls) == 2)
        dead_letters_of(app).send(letter)  # as though the first replay had not been seen to succeed
        dead_letters_of(app).replay(everything=True)
        until(lambda: unacknowledged(server) == 0 and queued(server) == 0)
        result.forget()
    assert calls == [1, 1]


def test_message_stays_while_its_letter_cannot_be_sent(app: Celery, server: RedisServer) -> None:
    @define(app, base=SingletonTask, name="t")
    def body() -> None:
        raise ValueError("no")

    client: Any = server.connect()
    with working(app):
        # A queue of that name that no message can be put into.
        client.set("dead-letters", "in the way")
        result = body.delay()
        until(lambda: outcome_of(app, result.id) == LETTER_DUE)
        with pytest.raises(AssertionError):
            until(lambda: unacknowledged(server) + queued(server) == 0, within=3)
        client.delete("dead-letters")
        until(lambda: outcome_of(app, result.id) == "failed")
        until(lambda: unacknowledged(server) == 0)
    assert len(dead_letters_of(app).list()) == 1


def test_run_without_letters_only_fails(app: Celery, server: RedisServer) -> None:
    @define(app, base=SingletonTask, name="t", dead_letter=False, when_store_down="fail")
    def body() -> None:
        raise StoreUnavailable("x", "y")

    with working(app):
        result = body.delay()
        until(lambda: outcome_of(app, result.id) == "failed")
        until(lambda: unacknowledged(server) == 0)
    assert queued(server, "dead-letters") == 0
