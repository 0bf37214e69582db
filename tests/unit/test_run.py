"""What the store's answers mean to a worker."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from celery_singleton_lock.core.errors import LeaseLost
from celery_singleton_lock.core.models import (
    Answer,
    Done,
    Granted,
    Held,
    Lease,
    LeaseRequest,
    Record,
    RecordState,
)
from celery_singleton_lock.worker.current_run import Run, Skipped
from celery_singleton_lock.worker.run import (
    LETTER_DUE,
    SUCCEEDED,
    Ask,
    Copy,
    Keep,
    Leases,
    Poisoned,
    Skip,
    Start,
    judge,
    pause_before_offer,
    position_of,
    run_key,
    stand_back,
    to_take_back,
)

TTL = timedelta(seconds=30)
ASK = Ask(run="r1", owner="r1:e1", position=1, ttl=TTL, run_key="run:r1", task_key="task:t")
ELSEWHERE = Held("r2:e9", timedelta(seconds=12))


def granted(key: str = "run:r1", takeovers: int = 0, *, fence: int = 7) -> Granted:
    return Granted(Lease(LeaseRequest(key, "r1:e1", TTL), fence, float("inf")), takeovers)


def record(
    key: str, state: RecordState, *, owner: str = "r2:e9", heir: str | None = None, position: int = 0
) -> Record:
    until = datetime.now(UTC)
    left = timedelta(seconds=12)
    return Record(key, state, owner, 7, until, until, left, position, None, heir, 0, {})


RAN_OUT = record("run:r1", RecordState.EXPIRED, owner="r1:e0")
BUSY = record("task:t", RecordState.HELD)


def test_nobody_displaces_the_last_owner_of_a_run_whose_job_is_another_runs() -> None:
    assert stand_back(ASK, RAN_OUT, BUSY) == Keep("overlap", "r2:e9", BUSY.remaining, "task:t")
    parked = record("task:t", RecordState.PARKED, heir="r3")
    assert stand_back(ASK, RAN_OUT, parked) == Keep("overlap", "r3", parked.remaining, "task:t")


def test_run_that_nobody_left_behind_is_asked_for_at_once() -> None:
    assert stand_back(ASK, None, BUSY) is None
    for state in set(RecordState) - {RecordState.EXPIRED}:
        assert stand_back(ASK, record("run:r1", state), BUSY) is None


def test_run_is_taken_over_at_once_where_its_job_is_open_to_it() -> None:
    open_to_it = [
        None,
        record("task:t", RecordState.FREE),
        record("task:t", RecordState.EXPIRED),
        record("task:t", RecordState.PARKED, heir="r1"),
        record("task:t", RecordState.HELD, owner=ASK.owner),
    ]
    assert [stand_back(ASK, RAN_OUT, task) for task in open_to_it] == [None] * 5


def test_run_that_went_on_is_known_for_a_copy_at_once() -> None:
    further = record("run:r1", RecordState.EXPIRED, position=1)
    assert stand_back(ASK, further, BUSY) is None


def test_granted_starts_with_both_leases() -> None:
    run, task = granted(), granted("task:t")
    assert judge(ASK, [run, task]) == Start(Leases(run.lease, task.lease), 0)


def test_finished_run_is_a_copy_whoever_holds_the_task() -> None:
    for task in (granted("task:t"), ELSEWHERE):
        assert judge(ASK, [Done(99, SUCCEEDED), task]) == Copy(SUCCEEDED, is_letter_due=False)


def test_copy_of_a_run_whose_letter_was_not_sent_owes_it() -> None:
    assert judge(ASK, [Done(1, LETTER_DUE), ELSEWHERE]) == Copy(LETTER_DUE, is_letter_due=True)
    later = replace(ASK, position=2)
    assert judge(later, [Done(3, LETTER_DUE), ELSEWHERE]) == Copy(LETTER_DUE, is_letter_due=False)


def test_run_held_elsewhere_is_kept() -> None:
    assert judge(ASK, [ELSEWHERE, ELSEWHERE]) == Keep("held", ELSEWHERE.by, ELSEWHERE.remaining)


def test_overlap_is_skipped_by_default() -> None:
    run = granted()
    assert judge(ASK, [run, ELSEWHERE]) == Skip("overlap", ELSEWHERE.by, run.lease)


IN_LINE = Keep("overlap", ELSEWHERE.by, ELSEWHERE.remaining, "task:t")


def test_overlap_waits_in_line_where_asked_to() -> None:
    ask = replace(ASK, overlap="queue")
    assert judge(ask, [granted(), ELSEWHERE]) == IN_LINE


def test_run_that_fills_a_gap_waits_in_line_whatever_the_overlap() -> None:
    """Else of all slots of a backfill, which are published together, one would be executed."""
    ask = replace(ASK, overlap="skip", in_turn=True)
    assert judge(ask, [granted(), ELSEWHERE]) == IN_LINE


def test_wait_in_line_ends_with_lock_wait() -> None:
    ask = replace(ASK, overlap="queue", lock_wait=TTL, waited=TTL)
    run = granted()
    assert judge(ask, [run, ELSEWHERE]) == Skip("waited too long", ELSEWHERE.by, run.lease)


@pytest.mark.parametrize("overlap", ["skip", "queue"])
@pytest.mark.parametrize("takeovers", [0, 1])
def test_run_that_was_started_before_is_never_skipped(overlap: Any, takeovers: int) -> None:
    ask = replace(
        ASK,
        overlap=overlap,
        was_started=not takeovers,
        lock_wait=TTL if overlap == "queue" else None,
        waited=TTL,
    )
    assert isinstance(judge(ask, [granted(takeovers=takeovers), ELSEWHERE]), Keep)


def test_overlap_allow_locks_the_run_alone() -> None:
    ask = replace(ASK, task_key=None, overlap="allow")
    assert [request.key for request in ask.requests()] == ["run:r1"]
    run = granted()
    assert judge(ask, [run]) == Start(Leases(run.lease), 0)


def test_equal_call_that_is_queued_makes_this_one_a_duplicate() -> None:
    ask = replace(ASK, call_key="call:t")
    run = granted()
    answers: list[Answer] = [run, granted("task:t"), Held("r2", TTL)]
    assert judge(ask, answers) == Skip("duplicate", "r2", run.lease)
    assert isinstance(judge(replace(ask, was_started=True), answers), Start)


def test_run_that_kills_its_workers_is_poisoned_at_last() -> None:
    ask = replace(ASK, max_deliveries=2)
    run = granted(takeovers=2)
    assert judge(ask, [run, granted("task:t")]) == Poisoned(2, run.lease)
    assert isinstance(judge(ask, [granted(takeovers=1), granted("task:t")]), Start)


def test_what_is_not_needed_is_taken_back() -> None:
    run, task = granted(), granted("task:t")
    assert to_take_back(judge(ASK, [run, task]), [run, task]) == []
    assert to_take_back(judge(ASK, [run, ELSEWHERE]), [run, ELSEWHERE]) == []
    kept = judge(replace(ASK, overlap="queue"), [run, ELSEWHERE])
    assert run in to_take_back(kept, [run, ELSEWHERE])
    copied = judge(ASK, [Done(1), task])
    assert task in to_take_back(copied, [Done(1), task])


def test_all_leases_are_asked_for_in_one_call() -> None:
    ask = replace(ASK, call_key="call:t", note={"task": "t", "worker": "w"})
    run, task, call = ask.requests()
    assert (run.position, run.owner, run.note) == (1, "r1:e1", {"task": "t", "worker": "w"})
    assert (task.heir, task.owner, task.position) == ("r1", "r1:e1", None)
    assert (call.heir, call.owner) == ("r1", "r1")


@pytest.mark.parametrize(
    ("how", "waits"),
    [
        ({}, False),
        ({"overlap": "queue"}, True),
        ({"in_turn": True}, True),
        ({"was_started": True}, True),
        ({"may_take_over": True}, True),
    ],
)
def test_store_is_to_tell_those_who_would_wait_for_their_job(how: dict[str, Any], waits: bool) -> None:
    _, task = replace(ASK, **how).requests()
    assert task.waiting is waits


def test_positions_grow_with_retries_and_beyond_them_with_replacements() -> None:
    assert position_of(0, 0) < position_of(1, 0) < position_of(10_000, 0) < position_of(0, 1)


def test_replayed_run_has_a_record_of_its_own() -> None:
    assert run_key("r") == "run:r"
    assert run_key("r", 1).startswith("run:r:")


def test_offers_come_more_seldom_but_not_after_the_lease_has_ended() -> None:
    keep = Keep("held", "x", timedelta(seconds=30))
    assert 0.1 <= pause_before_offer(keep, 0, timedelta(0), None) <= 0.2
    assert 2.5 <= pause_before_offer(keep, 20, timedelta(0), None) <= 5
    soon = Keep("held", "x", timedelta(seconds=1))
    assert pause_before_offer(soon, 20, timedelta(0), None) <= 1.05


def test_first_in_line_that_would_not_be_told_is_offered_more_often() -> None:
    keep = Keep("overlap", "x", timedelta(seconds=30), "task:t")
    assert 0.5 <= pause_before_offer(keep, 20, timedelta(0), None, is_eager=True) <= 1


def test_last_offer_comes_when_lock_wait_is_over() -> None:
    keep = Keep("overlap", "x", timedelta(seconds=30))
    pause = pause_before_offer(keep, 20, timedelta(seconds=9), timedelta(seconds=10))
    assert pause <= 1.05


def test_run_that_is_not_skipped_when_lock_wait_is_over_is_not_offered_all_the_time() -> None:
    keep = Keep("overlap", "x", timedelta(seconds=30))
    for waited in (10, 11, 1000):
        pause = pause_before_offer(keep, 20, timedelta(seconds=waited), timedelta(seconds=10))
        assert 2.5 <= pause <= 5


def test_run_has_the_fence_of_its_task_and_ends_with_either_lease() -> None:
    run, task = granted(fence=1).lease, granted("task:t", fence=2).lease
    seen = Run(id="r1", task="t", leases=Leases(run, task))
    assert (seen.fence, seen.is_locked) == (2, True)
    assert Run(id="r1", task="t", leases=Leases(run)).fence == 1
    seen.ensure_held()
    run.lapse()
    with pytest.raises(LeaseLost):
        seen.ensure_held()


def test_run_without_a_lock_is_never_lost() -> None:
    seen = Run(id="r1", task="t")
    seen.ensure_held()
    assert (seen.fence, seen.is_locked, seen.remaining) == (0, False, timedelta.max)


def test_skipped_is_json_and_is_read_back() -> None:
    skipped = Skipped("overlap", "r2")
    read = Skipped.read(json.loads(json.dumps(skipped)))
    assert read == skipped == pickle.loads(pickle.dumps(skipped))
    assert read is not None
    assert (read.reason, read.by) == ("overlap", "r2")
    assert Skipped.read({"reason": "overlap"}) is None
    assert Skipped.read(None) is None
