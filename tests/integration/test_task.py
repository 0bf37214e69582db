"""`SingletonTask` in a worker: every answer of the store, and what becomes of run and message."""

from __future__ import annotations

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery, _state, chain, chord, group
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, MaxRetriesExceededError, Reject, Retry
from celery.signals import worker_init

from benchmarks.round_trips import counted_round_trips
from celery_singleton_lock import (
    FINISHED,
    ConfigurationError,
    Granted,
    LeaseLost,
    LeaseRequest,
    RecordState,
    Release,
    SingletonTask,
    Skipped,
    StoreUnavailable,
    WorkersDied,
    current_run,
    signals,
)
from celery_singleton_lock.core.headers import AGAIN, IN_TURN
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker import parts
from celery_singleton_lock.worker.parts import parts_of
from celery_singleton_lock.worker.request import COUNTS
from tests.end_to_end.beats import until

from .workers import (
    LEAVES_CONNECTIONS,
    Gate,
    define,
    outcome_of,
    queued,
    record_of,
    unacknowledged,
    working,
)

WITHIN = 20
pytestmark = LEAVES_CONNECTIONS


def test_run_is_known_inside_and_finished_after(app: Celery, server: RedisServer) -> None:
    seen: dict[str, Any] = {}

    @define(app, base=SingletonTask, bind=True, name="t", unique_on=["a"])
    def body(self: Any, a: int) -> int:
        run = self.current_run
        run.ensure_held()
        seen.update(id=run.id, fence=run.fence, attempt=run.attempt, entry=run.entry, slot=run.slot)
        seen.update(same=current_run() is run, run=record_of(app, f"run:{run.id}"))
        return a + 1

    beats = {"singleton_entry": "nightly", "singleton_slot": "2026-01-02T03:00:00Z"}
    with working(app):
        result = body.apply_async((1,), headers=beats)
        assert result.get(timeout=WITHIN) == 2
        until(lambda: outcome_of(app, result.id) == "succeeded")
        until(lambda: unacknowledged(server) == 0)
    assert (seen["id"], seen["attempt"], seen["same"]) == (result.id, 1, True)
    assert (seen["entry"], seen["slot"]) == ("nightly", datetime(2026, 1, 2, 3, tzinfo=UTC))
    assert seen["fence"] > 10**15
    held = seen["run"]
    assert held.state is RecordState.HELD
    note = held.note
    assert (note["task"], note["run"], note["entry"], note["attempt"]) == ("t", result.id, "nightly", 1)
    assert note["message"]["headers"]["id"] == result.id
    record = record_of(app, f"run:{result.id}")
    assert record is not None
    assert (record.state, record.position) == (RecordState.FREE, FINISHED)
    assert parts_of(app).keep_alive.leases == []
    assert current_run() is None


def test_task_without_contention_costs_two_round_trips(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", ignore_result=True)
    def body() -> None: ...

    # A trace without a worker, whose traffic with the broker could not be told apart at the sockets.
    tracer = build_tracer("t", app.tasks["t"], app=app)
    request = {"task": "t", "retries": 0, "delivery_info": {}, "properties": {}}
    tracer("warm", (), {}, {"id": "warm", **request})
    with counted_round_trips() as trips:
        tracer("r", (), {}, {"id": "r", **request})
    assert trips.count == 2
    assert outcome_of(app, "r") == "succeeded"


def test_copy_of_a_finished_run_is_acknowledged_and_leaves_no_trace(
    app: Celery, server: RedisServer
) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", track_started=True)
    def body() -> int:
        calls.append(1)
        return len(calls)

    @define(app, name="callback")
    def callback(value: int) -> None:
        calls.append(100)

    with working(app):
        before = COUNTS["copy"]
        result = body.apply_async(task_id="run-1", link=callback.s())
        assert result.get(timeout=WITHIN) == 1
        until(lambda: outcome_of(app, "run-1") == "succeeded" and 100 in calls)
        for _ in range(3):
            body.apply_async(task_id="run-1", link=callback.s())
        until(lambda: COUNTS["copy"] == before + 3)
        until(lambda: unacknowledged(server) == 0 and queued(server) == 0)
    assert calls == [1, 100]
    assert (result.state, result.get()) == ("SUCCESS", 1)


def test_run_that_is_held_elsewhere_is_kept_and_offered_again(app: Celery, server: RedisServer) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t")
    def body() -> str:
        calls.append(current_run().attempt)  # type: ignore[union-attr]
        return "done"

    store = parts_of(app).store
    store.acquire([LeaseRequest("run:r", "somebody", timedelta(seconds=3), position=1)])
    with working(app):
        before = COUNTS["kept"]
        result = body.apply_async(task_id="r")
        until(lambda: COUNTS["kept"] > before)
        assert unacknowledged(server) == 1
        assert result.get(timeout=WITHIN) == "done"  # taken over once the lease has run out
        until(lambda: unacknowledged(server) == 0)
    assert calls == [1]


def test_one_copy_waits_however_often_it_is_delivered(app: Celery, server: RedisServer) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t")
    def body() -> str:
        gate.enter()
        return "done"

    with working(app):
        result = body.apply_async(task_id="r")
        assert gate.wait_for_entry()
        for _ in range(5):
            body.apply_async(task_id="r")
        until(lambda: queued(server) == 0)
        # One is executed, one waits; and the broker delivers both again every few seconds.
        time.sleep(8)
        assert unacknowledged(server) + queued(server) <= 2
        gate.open()
        assert result.get(timeout=WITHIN) == "done"
        until(lambda: unacknowledged(server) + queued(server) == 0)
    assert not gate.wait_for_entry(within=0.1)


def test_overlap_is_skipped_and_the_caller_is_told(app: Celery, server: RedisServer) -> None:
    gate = Gate()
    told: list[dict[str, Any]] = []

    @define(app, base=SingletonTask, name="t", unique_on=())
    def body(number: int) -> int:
        gate.enter()
        return number

    @signals.run_skipped.connect
    def on_skip(**facts: Any) -> None:
        told.append(facts)

    try:
        with working(app):
            first = body.delay(1)
            assert gate.wait_for_entry()
            second = body.delay(2)
            skipped = Skipped.read(second.get(timeout=WITHIN))
            gate.open()
            assert first.get(timeout=WITHIN) == 1
            until(lambda: unacknowledged(server) == 0)
    finally:
        signals.run_skipped.disconnect(on_skip)
    assert skipped is not None
    assert skipped.reason == "overlap"
    assert skipped.by.startswith(first.id)
    assert told == [{"task": "t", "run": second.id, "reason": "overlap", "by": skipped.by}]
    assert outcome_of(app, second.id) == "skipped"


def test_canvas_with_a_skip_goes_on(app: Celery) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t", unique_on=())
    def body(*args: int) -> int:
        gate.enter()
        return 1

    @define(app, name="collect")
    def collect(values: Any) -> Any:
        return values

    with working(app):
        body.delay()
        assert gate.wait_for_entry()
        chained = chain(body.si(2), collect.s()).apply_async()
        grouped = group(body.si(3), body.si(4)).apply_async()
        chorded = chord([body.si(5), collect.si("x")], collect.s()).apply_async()
        assert Skipped.read(chained.get(timeout=WITHIN)) is not None
        assert [Skipped.read(each) is not None for each in grouped.get(timeout=WITHIN)] == [True] * 2
        skipped, plain = chorded.get(timeout=WITHIN)
        gate.open()
    assert Skipped.read(skipped) is not None
    assert plain == "x"


def test_overlap_waits_in_line_in_no_pool_slot(app: Celery, server: RedisServer) -> None:
    gate, order = Gate(), []

    @define(app, base=SingletonTask, name="t", unique_on=(), overlap="queue")
    def body(number: int) -> int:
        order.append(number)
        gate.enter()
        return number

    @define(app, name="other")
    def other() -> str:
        return "other"

    with working(app, concurrency=2):
        results = [body.delay(number) for number in range(4)]
        assert gate.wait_for_entry()
        assert other.delay().get(timeout=WITHIN) == "other"  # three wait, and one slot is free
        assert len(order) == 1
        gate.open()
        assert [each.get(timeout=WITHIN) for each in results] == [0, 1, 2, 3]
        until(lambda: unacknowledged(server) == 0)
    assert sorted(order) == [0, 1, 2, 3]


def test_wait_in_line_ends_with_lock_wait(app: Celery) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t", unique_on=(), overlap="queue", lock_wait=1)
    def body() -> None:
        gate.enter()

    with working(app):
        body.delay()
        assert gate.wait_for_entry()
        began = time.monotonic()
        skipped = Skipped.read(body.delay().get(timeout=WITHIN))
        assert time.monotonic() - began >= 1
        gate.open()
    assert skipped is not None
    assert skipped.reason == "waited too long"


@pytest.mark.parametrize("how", ["retried", "delivered again"])
def test_run_that_may_have_been_started_waits_and_is_not_skipped(
    app: Celery, server: RedisServer, how: str
) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t", unique_on=(), overlap="skip")
    def body(number: int) -> int:
        if number == 1:
            gate.enter()
        return number

    with working(app):
        first = body.delay(1)
        assert gate.wait_for_entry()
        before = COUNTS["kept"]
        if how == "retried":
            second = body.apply_async((2,), retries=1)
        else:
            second = body.apply_async((2,), queue="aside")
            _deliver_again(server, "aside")
        until(lambda: COUNTS["kept"] > before)
        gate.open()
        assert (first.get(timeout=WITHIN), second.get(timeout=WITHIN)) == (1, 2)


@pytest.mark.parametrize("how", ["published again", "delivered again"])
def test_run_that_waits_for_its_job_leaves_its_last_owner_the_right_to_end_it(
    app: Celery, server: RedisServer, how: str
) -> None:
    gate, calls = Gate(), []

    @define(app, base=SingletonTask, name="t", unique_on=())
    def body(number: int) -> None:
        calls.append(number)
        gate.enter()

    store = parts_of(app).store
    # It did all of its work, and could not say so before its lease ran out.
    [late] = store.acquire([LeaseRequest("run:r", "late", timedelta(milliseconds=50), position=1)])
    assert isinstance(late, Granted)
    with gate, working(app):
        body.delay(1)
        assert gate.wait_for_entry()
        before = COUNTS["kept"]
        if how == "published again":
            body.apply_async((2,), task_id="r", headers={AGAIN: True})
        else:
            body.apply_async((2,), task_id="r", queue="aside")
            _deliver_again(server, "aside")
        until(lambda: COUNTS["kept"] > before)
        end = Release(late.lease, position=FINISHED, outcome="succeeded")
        assert store.release([end]) == [True]
        gate.open()
        until(lambda: queued(server) == 0 and unacknowledged(server) == 0)
    assert calls == [1]


def _deliver_again(server: RedisServer, queue: str) -> None:
    """As the broker does with a message that was not acknowledged."""
    client: Any = server.connect()
    message = json.loads(client.lpop(queue))
    message["properties"]["delivery_info"]["redelivered"] = True
    client.rpush("celery", json.dumps(message))


def test_overlap_may_be_allowed_and_runs_are_still_executed_once(app: Celery) -> None:
    gate, calls = Gate(), []

    @define(app, base=SingletonTask, name="t", unique_on=(), overlap="allow")
    def body() -> int:
        calls.append(current_run().fence)  # type: ignore[union-attr]
        gate.enter()
        return 1

    with working(app):
        results = [body.delay() for _ in range(2)]
        assert gate.wait_for_entry()
        assert gate.wait_for_entry()
        body.apply_async(task_id=results[0].id)
        gate.open()
        assert [each.get(timeout=WITHIN) for each in results] == [1, 1]
        until(lambda: outcome_of(app, results[0].id) == "succeeded")
        time.sleep(1)
    assert len(calls) == 2


@pytest.mark.parametrize("then", ["looks", "returns", "retries", "fails"])
def test_lost_run_leaves_no_result_no_callback_and_no_retry(
    app: Celery, server: RedisServer, then: str
) -> None:
    gate, calls, lost = Gate(), [], threading.Event()

    @define(app, base=SingletonTask, bind=True, name="t", autoretry_for=(Exception,), retry_backoff=1)
    def body(self: Any) -> int:
        calls.append(self.current_run.fence)
        if len(calls) == 1:
            gate.enter()
            if then == "looks":
                self.current_run.ensure_held()
            if then == "retries":
                self.retry(countdown=0.1)
            if then == "fails":
                raise ValueError("no")
        assert self.current_run.attempt == 1
        return len(calls)

    @define(app, name="callback")
    def callback(value: int) -> None:
        calls.append(value)

    signals.lease_lost.connect(lambda **_: lost.set())
    with working(app):
        result = body.apply_async(task_id="r", link=callback.s())
        assert gate.wait_for_entry()
        store = parts_of(app).store
        store.force_release("run:r", who="test", why="a successor")
        store.acquire([LeaseRequest("run:r", "other", timedelta(seconds=6), position=1)])
        assert lost.wait(WITHIN)
        gate.open()
        time.sleep(2)
        assert (result.state, len(calls)) == ("PENDING", 1)
        # The message is kept: the successor may die. Here it does.
        assert result.get(timeout=WITHIN) == 2
        until(lambda: len(calls) == 3 and unacknowledged(server) == 0)
    assert calls[1] > calls[0]
    assert calls[2] == 2


@pytest.mark.parametrize("lost", ["run", "task"])
def test_body_does_not_begin_after_its_lease_was_lost(app: Celery, lost: str) -> None:
    """A worker is stopped between the grant and the body, for longer than the lease lasts."""
    calls: list[int] = []
    fences: list[int] = []

    class Slow(SingletonTask):
        abstract = True

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            super().before_start(task_id, args, kwargs)
            if fences:
                return
            store = parts_of(app).store
            [key] = [each.key for each in store.scan(f"{lost}:")]
            store.force_release(key, who="test", why="a successor")
            [successor] = store.acquire([LeaseRequest(key, "other", timedelta(seconds=1))])
            assert isinstance(successor, Granted)
            fences.append(successor.lease.fence)
            until(lambda: not self.current_run.remaining)

    @define(app, base=Slow, bind=True, name="t", unique_on=(), overlap="queue")
    def body(self: Any) -> None:
        run = self.current_run
        calls.append(run.fences._asdict()[lost])

    with working(app):
        body.apply_async(task_id="r").get(timeout=WITHIN)
    assert len(calls) == 1
    assert calls > fences


def test_failed_run_is_finished_and_not_executed_again(app: Celery, server: RedisServer) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", dead_letter=False, track_started=True)
    def body() -> None:
        calls.append(1)
        raise ValueError("no")

    with working(app):
        before = COUNTS["copy"]
        result = body.delay()
        with pytest.raises(ValueError, match="no"):
            result.get(timeout=WITHIN)
        until(lambda: outcome_of(app, result.id) == "failed")
        body.apply_async(task_id=result.id)
        until(lambda: COUNTS["copy"] > before and unacknowledged(server) == 0)
        assert app.AsyncResult(result.id).state == "FAILURE"  # and not STARTED
    assert calls == [1]


def test_retry_keeps_the_job_closed_and_enters_it_again(app: Celery, server: RedisServer) -> None:
    attempts: list[tuple[int, int]] = []
    retried: list[dict[str, Any]] = []

    @define(app, base=SingletonTask, bind=True, name="t", unique_on=(), max_retries=5)
    def body(self: Any, fails: bool) -> str:
        attempts.append((self.current_run.attempt, self.current_run.fence))
        if fails and len(attempts) < 3:
            raise self.retry(countdown=1.5, exc=ValueError("again"))
        return "done"

    signals.run_retrying.connect(lambda **facts: retried.append(facts))
    with working(app):
        result = body.delay(True)
        until(lambda: outcome_of(app, result.id) == "retried")
        parked = record_of(app, "task:t")
        assert parked is not None
        assert (parked.state, parked.heir) == (RecordState.PARKED, result.id)
        other = Skipped.read(body.delay(False).get(timeout=WITHIN))
        assert other is not None
        assert other.by == result.id
        # A copy of the first attempt, while the second waits.
        body.apply_async((True,), task_id=result.id)
        assert result.get(timeout=WITHIN) == "done"
        until(lambda: unacknowledged(server) == 0)
    assert [attempt for attempt, _ in attempts] == [1, 2, 3]
    assert attempts[0][1] < attempts[1][1] < attempts[2][1]
    mine = [each for each in retried if each["run"] == result.id]
    assert [each["attempt"] for each in mine] == [1, 2]
    assert mine[0]["delay"] == timedelta(seconds=1.5)


@pytest.mark.parametrize("how", ["self.retry", "autoretry", "by hand", "returned"])
def test_ways_to_retry(app: Celery, how: str) -> None:
    calls: list[int] = []

    @define(
        app,
        base=SingletonTask,
        bind=True,
        name="t",
        autoretry_for=(OSError,),
        retry_backoff=1,
        retry_jitter=False,
        max_retries=2,
    )
    def body(self: Any) -> int:
        calls.append(self.request.retries)
        if len(calls) <= 1:
            if how == "self.retry":
                raise self.retry()
            if how == "autoretry":
                raise OSError
            if how == "by hand":
                raise Retry(when=0.5)
            self.retry(countdown=0.5, throw=False)
        return len(calls)

    with working(app):
        result = body.delay()
        until(lambda: calls == [0, 1])
        until(lambda: outcome_of(app, result.id) == "succeeded")
        assert result.get(timeout=WITHIN) in (1, 2)


@pytest.mark.parametrize(("longest", "warns"), [(3, False), (60, True)])
def test_backoff_beyond_the_visibility_timeout_is_warned_of_at_start(
    app: Celery, caplog: pytest.LogCaptureFixture, longest: int, warns: bool
) -> None:
    @define(app, base=SingletonTask, name="t", retry_backoff_max=longest, max_retries=None)
    def body() -> None: ...

    with working(app):
        pass
    assert ("retry_outlives_visibility_timeout task=t longest_s=60" in caplog.text) is warns


def test_ttl_that_cannot_work_ends_the_worker_at_its_start(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", lock_ttl=0.5)
    def body() -> None: ...

    with pytest.raises(ConfigurationError, match="two renewals"):
        app.tasks["t"].start_strategy(app, None)


def test_retries_are_used_up(app: Celery) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, bind=True, name="t", max_retries=1, default_retry_delay=0.1)
    def body(self: Any) -> None:
        calls.append(1)
        self.retry()

    with working(app), pytest.raises(MaxRetriesExceededError):
        body.delay().get(timeout=WITHIN)
    assert calls == [1, 1]


def test_attempt_whose_retry_cannot_be_published_is_made_again_with_a_fence_of_its_own(
    app: Celery,
) -> None:
    fences: list[int] = []

    class Unheard(SingletonTask):
        abstract = True

        def signature_from_request(self, *args: Any, **kwargs: Any) -> Any:
            signature = super().signature_from_request(*args, **kwargs)
            if len(fences) == 1:
                signature.apply_async = self._broker_is_away
            return signature

        def _broker_is_away(self, *args: Any, **kwargs: Any) -> Any:
            raise ConnectionResetError("the broker is away")

    @define(app, base=Unheard, bind=True, name="t", unique_on=())
    def body(self: Any) -> int:
        fences.append(self.current_run.fence)
        if self.current_run.attempt == 1:
            raise self.retry(countdown=0.1)
        return int(self.current_run.attempt)

    with working(app):
        assert body.delay().get(timeout=WITHIN) == 2
        until(lambda: not parts_of(app).keep_alive.leases)
    assert len(fences) == 3
    assert fences == sorted(set(fences))


def test_max_retries_none_is_for_ever(app: Celery) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, bind=True, name="t", max_retries=None)
    def body(self: Any) -> int:
        calls.append(1)
        if len(calls) < 8:
            self.retry(countdown=0.01)
        return len(calls)

    with working(app):
        assert body.delay().get(timeout=WITHIN) == 8


def test_ignore_is_the_end_and_reject_with_requeue_is_not(app: Celery) -> None:
    calls: list[str] = []

    @define(app, base=SingletonTask, name="t", autoretry_for=(Exception,), dead_letter=False)
    def body(what: str) -> str:
        calls.append(what)
        if what == "ignore":
            raise Ignore
        if what == "reject":
            raise Reject("bad", requeue=False)
        if calls.count("requeue") == 1:
            raise Reject("later", requeue=True)
        return what

    with working(app):
        ignored, rejected = body.delay("ignore"), body.delay("reject")
        until(lambda: outcome_of(app, ignored.id) == "ignored")
        until(lambda: outcome_of(app, rejected.id) == "rejected")
        assert body.delay("requeue").get(timeout=WITHIN) == "requeue"
    assert sorted(calls) == ["ignore", "reject", "requeue", "requeue"]


def test_replaced_task_runs_under_the_same_id(app: Celery) -> None:
    @define(app, base=SingletonTask, name="second")
    def second(value: int) -> int:
        return value + 1

    @define(app, base=SingletonTask, bind=True, name="first")
    def first(self: Any) -> Any:
        raise self.replace(second.s(1))

    with working(app):
        result = first.delay()
        assert result.get(timeout=WITHIN) == 2
        until(lambda: outcome_of(app, result.id) == "succeeded")


def test_poisoned_run_is_not_started_again(app: Celery, server: RedisServer) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", max_deliveries=2, dead_letter=False)
    def body() -> None:
        calls.append(1)

    store = parts_of(app).store
    for number in range(3):
        request = LeaseRequest("run:r", f"dead {number}", timedelta(milliseconds=100), position=1)
        store.acquire([request])
        time.sleep(0.15)
    with working(app):
        with pytest.raises(WorkersDied):
            body.apply_async(task_id="r").get(timeout=WITHIN)
        until(lambda: unacknowledged(server) == 0)
    assert calls == []
    assert outcome_of(app, "r") == "failed"


def test_cooldown_keeps_the_job_closed(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", unique_on=(), lock_at_least=2)
    def body() -> int:
        return 1

    with working(app):
        assert body.delay().get(timeout=WITHIN) == 1
        assert Skipped.read(body.delay().get(timeout=WITHIN)) is not None
        until(lambda: record_of(app, "task:t").state is RecordState.FREE)  # type: ignore[union-attr]
        assert body.delay().get(timeout=WITHIN) == 1


def test_lock_at_most_ends_the_lock_and_not_the_run(app: Celery) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t", unique_on=(), lock_at_most=2)
    def body(number: int) -> int:
        if number == 1:
            gate.enter()
        return number

    with working(app):
        first = body.delay(1)
        assert gate.wait_for_entry()
        time.sleep(2.5)
        assert body.delay(2).get(timeout=WITHIN) == 2
        gate.open()
        assert first.get(timeout=WITHIN) == 1


def test_long_run_is_reported_overdue_once(app: Celery) -> None:
    told: list[dict[str, Any]] = []
    heard = threading.Event()

    @signals.lease_overdue.connect
    def on_overdue(**facts: Any) -> None:
        told.append(facts)
        heard.set()

    @define(app, base=SingletonTask, name="t", expect_within=0.2)
    def body() -> None:
        assert heard.wait(WITHIN)
        time.sleep(0.5)

    with working(app):
        result = body.delay()
        result.get(timeout=WITHIN)
    signals.lease_overdue.disconnect(on_overdue)
    assert told == [{"task": "t", "run": result.id, "expected": timedelta(seconds=0.2)}]


@pytest.mark.parametrize("policy", ["wait", "run", "fail"])
def test_store_that_is_away(app: Celery, policy: str) -> None:
    @define(app, base=SingletonTask, name="t", when_store_down=policy, dead_letter=False)
    def body() -> tuple[bool, int]:
        run = current_run()
        assert run is not None
        run.ensure_held()
        return run.is_locked, run.fence > 0

    with RedisServer() as locks:
        app.conf.singleton_lock_url = locks.url
        with working(app):
            locks.kill()
            result = body.delay()
            if policy == "fail":
                with pytest.raises(StoreUnavailable):
                    result.get(timeout=WITHIN)
            elif policy == "run":
                assert result.get(timeout=WITHIN) == [False, False]
            else:
                before = COUNTS["kept"]
                until(lambda: COUNTS["kept"] >= before + 2)
                locks.restart()
                assert result.get(timeout=WITHIN) == [True, True]


def test_store_that_is_away_at_the_end_is_waited_for(app: Celery, server: RedisServer) -> None:
    gate, calls = Gate(), []

    @define(app, base=SingletonTask, name="t")
    def body() -> str:
        calls.append(1)
        gate.enter()
        return "done"

    with RedisServer() as locks:
        app.conf.singleton_lock_url = locks.url
        app.conf.broker_transport_options["visibility_timeout"] = 60
        with working(app):
            result = body.delay()
            assert gate.wait_for_entry()
            locks.pause()
            gate.open()
            time.sleep(3)  # longer than its ttl, and nobody else can have been granted it
            locks.resume()
            assert result.get(timeout=WITHIN) == "done"
            until(lambda: outcome_of(app, result.id) == "succeeded")
            until(lambda: unacknowledged(server) == 0)
    assert calls == [1]


def test_lease_lost_in_a_thread_aborts_the_body_where_asked_to(app: Celery) -> None:
    raised: list[LeaseLost] = []

    @define(app, base=SingletonTask, name="t", unique_on=(), on_lease_lost="abort")
    def body() -> str:
        if raised:
            return "again"
        parts_of(app).store.force_release("task:t", who="test", why="test")
        try:
            for _ in range(3000):
                time.sleep(0.01)
        except LeaseLost as lost:
            raised.append(lost)
            raise
        return "not aborted"

    with working(app):
        assert body.delay().get(timeout=WITHIN) == "again"
    assert raised[0].key == "task:t"


def test_revoked_and_expired_runs_leave_no_lease(app: Celery, server: RedisServer) -> None:
    @define(app, base=SingletonTask, bind=True, name="t", unique_on=(), max_retries=None)
    def body(self: Any) -> None:
        self.retry(countdown=3)

    with working(app):
        result = body.delay()
        until(lambda: outcome_of(app, result.id) == "retried")
        app.control.revoke(result.id)
        until(lambda: outcome_of(app, result.id) == "revoked")
        until(lambda: record_of(app, "task:t").state is RecordState.FREE)  # type: ignore[union-attr]
        expired = body.apply_async(expires=datetime.now(UTC) - timedelta(seconds=5))
        until(lambda: outcome_of(app, expired.id) == "revoked")
        until(lambda: unacknowledged(server) == 0)
        assert record_of(app, "task:t").state is RecordState.FREE  # type: ignore[union-attr]


def test_runs_that_fill_gaps_are_executed_one_after_the_other(app: Celery) -> None:
    """Of one job, with overlap="skip", and published together, as by a backfill."""
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", lock_key="one")
    def body(number: int) -> None:
        time.sleep(0.05)
        calls.append(number)

    app.conf.worker_prefetch_multiplier = 4
    with working(app):
        for number in range(6):
            body.apply_async((number,), headers={IN_TURN: True})
        until(lambda: len(calls) == 6)
    assert sorted(calls) == list(range(6))


def test_parts_are_made_before_a_pool_has_children(app: Celery) -> None:
    """Each child would import what its first task needs: with a ledger that takes half a second."""
    define(app, base=SingletonTask, name="t")(_does_nothing)

    def configure(sender: Any, **_: Any) -> None:
        sender.app.conf.singleton_lock_ttl = 77

    worker_init.connect(configure)
    try:
        app.WorkController(app=app, pool="prefork", concurrency=1)
    finally:
        worker_init.disconnect(configure)
        _state._set_task_join_will_block(False)  # which a pool says of the whole process
    assert parts._parts[app].settings.lock_ttl == timedelta(seconds=77)


def _does_nothing() -> None: ...
