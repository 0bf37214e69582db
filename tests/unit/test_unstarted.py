"""Slots whose run nobody starts: published again, under the same id. In virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.beat import unstarted
from celery_singleton_lock.beat.entries import BrokerUnavailable, Due
from celery_singleton_lock.beat.plan import CatchUp, CatchUpRule, run_id
from celery_singleton_lock.beat.slots import IntervalGrid, OnceGrid
from celery_singleton_lock.beat.start_terms import StartTerms, terms_of
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.facts import Fact, Listeners, RunName, SlotPublishedAgain
from celery_singleton_lock.core.models import FINISHED, Granted, LeaseRequest, Record, Release

from .world import SECOND, SETTINGS, START, World, new_app

HOUR = IntervalGrid(timedelta(hours=1))
SLOT = START + timedelta(hours=1)
TERMS = StartTerms("tasks.t")


def new_world(terms: StartTerms | None = TERMS, within: timedelta = 300 * SECOND) -> World:
    world = World()
    world.looks_after_starts = {
        "start_within": within,
        "remember_for": timedelta(hours=2),
        "terms_of": lambda name: terms,
    }
    return world


@pytest.fixture
def world() -> World:
    return new_world()


def rule(policy: CatchUp) -> CatchUpRule:
    return CatchUpRule(policy, timedelta(days=1), 15 * SECOND)


def start(world: World, due: Due) -> None:
    """As a worker does, which goes on with it."""
    key = f"run:{run_id('app', due.entry, due.slot)}"
    [answer] = world.store.acquire([LeaseRequest(key, "worker", 3000 * SECOND, position=1)])
    assert isinstance(answer, Granted)


def finish(world: World, due: Due) -> None:
    key = f"run:{run_id('app', due.entry, due.slot)}"
    [answer] = world.store.acquire([LeaseRequest(key, "worker", 30 * SECOND, position=1)])
    assert isinstance(answer, Granted)
    world.store.release([Release(answer.lease, FINISHED, "succeeded", timedelta(hours=2))])


def until(world: World, moment: datetime) -> None:
    world.run((moment - START).total_seconds() - (world.seconds - 1000))


def anew(world: World) -> list[float]:
    return [(due.slot - START).total_seconds() for due in world.published_anew]


def test_slot_whose_message_was_lost_is_published_again_once_by_three_replicas(world: World) -> None:
    for _ in range(3):
        world.add_replica({"e": HOUR})
    until(world, SLOT + 299 * SECOND)
    assert world.slots_of("e") == [3600.0]
    assert world.published_anew == []
    until(world, SLOT + 310 * SECOND)
    assert world.published_anew == [Due("e", SLOT, in_turn=True, again=True)]
    assert world.slots_of("e") == [3600.0]


@pytest.mark.parametrize("do", [start, finish])
def test_slot_whose_run_was_started_is_left_alone(world: World, do: Any) -> None:
    world.add_replica({"e": HOUR})
    until(world, SLOT + SECOND)
    do(world, world.published[0])
    until(world, SLOT + timedelta(minutes=50))
    assert world.published_anew == []


def test_listeners_are_told_which_slot_was_published_again(world: World) -> None:
    listeners, told = Listeners(), list[Fact]()
    listeners.add(told.append)
    world.looks_after_starts = {**world.looks_after_starts, "listeners": listeners}
    world.add_replica({"e": HOUR})
    until(world, SLOT + 301 * SECOND)
    [fact] = [fact for fact in told if isinstance(fact, SlotPublishedAgain)]
    assert fact.run == RunName(run_id("app", "e", SLOT), "tasks.t", "e", SLOT)
    assert SLOT + 300 * SECOND <= fact.at <= SLOT + 301 * SECOND


def test_copies_become_rarer_and_end_before_the_run_could_be_forgotten(world: World) -> None:
    world.add_replica({"e": OnceGrid(SLOT)})
    at: list[float] = []
    for _ in range(14_400):
        world.run(1)
        if len(world.published_anew) > len(at):
            at.append(world.seconds - 1000 - 3600)
    assert [round(each, -1) for each in at] == [300, 900, 2100, 4500]


def test_slot_of_a_replica_that_died_is_looked_after_by_another(world: World) -> None:
    first, _ = world.add_replica({"e": HOUR}), world.add_replica({"e": HOUR})
    until(world, SLOT + SECOND)
    world.kill(first)
    until(world, SLOT + 320 * SECOND)
    assert anew(world) == [3600.0]


def test_replica_that_dies_while_it_publishes_again_is_followed_by_another(world: World) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        world.before_publish = lambda: None
        world.store.is_away = True  # the dead release nothing
        raise Killed

    for _ in range(2):
        world.add_replica({"e": HOUR})
    until(world, SLOT + 200 * SECOND)
    world.before_publish = die
    with pytest.raises(Killed):
        until(world, SLOT + 310 * SECOND)
    world.store.is_away = False
    until(world, SLOT + 330 * SECOND)
    assert anew(world) == [3600.0]


def test_nothing_is_published_again_while_the_broker_is_away_and_it_is_afterwards(world: World) -> None:
    world.add_replica({"e": HOUR})
    until(world, SLOT + 200 * SECOND)
    world.broker_is_away = True
    until(world, SLOT + 400 * SECOND)
    assert world.published_anew == []
    world.broker_is_away = False
    world.run(1)
    assert anew(world) == [3600.0]


def test_replica_that_cannot_publish_lets_another_do_it(world: World) -> None:
    """Whichever of both looks first."""
    replicas = [world.add_replica({"e": HOUR}) for _ in range(2)]
    until(world, SLOT + 200 * SECOND)
    tried: list[object] = []

    def fail_first() -> None:
        tried.append(world.at_work)
        if world.at_work is tried[0]:
            raise BrokerUnavailable("its own connection is broken")

    world.before_publish = fail_first
    until(world, SLOT + 306 * SECOND)
    assert tried[0] in replicas
    assert anew(world) == [3600.0]


def test_workers_that_could_not_reach_the_store_get_the_time_to_start(world: World) -> None:
    world.add_replica({"e": HOUR})
    until(world, SLOT + 280 * SECOND)
    world.store.is_away = True
    until(world, SLOT + 400 * SECOND)
    world.store.is_away = False
    until(world, SLOT + 690 * SECOND)
    assert world.published_anew == []
    until(world, SLOT + 710 * SECOND)
    assert anew(world) == [3600.0]


def test_store_that_lost_its_memory_starts_nothing_twice(world: World) -> None:
    """The run was executed, and the store does not know it any more."""
    world.add_replica({"e": HOUR})
    until(world, SLOT + SECOND)
    finish(world, world.published[0])
    world.run(60)
    world.store.forget()
    until(world, SLOT + timedelta(minutes=50))
    assert world.published_anew == []


def test_store_that_loses_its_memory_while_it_is_asked_starts_nothing_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_replica({"e": HOUR})
    until(world, SLOT + SECOND)
    finish(world, world.published[0])
    peek = world.store.peek

    def forgetful(keys: Sequence[str]) -> list[Record | None]:
        if any(key.startswith("run:") for key in keys):
            world.store.forget()
        return peek(keys)

    monkeypatch.setattr(world.store, "peek", forgetful)
    until(world, SLOT + timedelta(minutes=10))
    assert world.published_anew == []


@pytest.mark.parametrize(
    ("policy", "published"), [("none", []), ("latest", [600.0]), ("all", [200.0, 400.0, 600.0])]
)
def test_old_slots_are_published_again_as_the_catch_up_rule_says(
    world: World, policy: CatchUp, published: list[float]
) -> None:
    class ThreeSlots(IntervalGrid):
        def next(self, after: datetime) -> datetime | None:
            slot = super().next(after)
            return None if slot is None or slot > START + 600 * SECOND else slot

    world.add_replica({"e": ThreeSlots(200 * SECOND)}, rule(policy))
    until(world, START + 1100 * SECOND)
    assert sorted(set(anew(world))) == published


def test_task_whose_runs_leave_no_record_is_never_published_again() -> None:
    world = new_world(None)
    world.add_replica({"e": HOUR})
    until(world, SLOT + timedelta(minutes=50))
    assert world.published_anew == []


def test_run_that_has_to_wait_before_it_starts_is_given_the_time() -> None:
    world = new_world(StartTerms("tasks.t", delay=600 * SECOND))
    world.add_replica({"e": HOUR})
    until(world, SLOT + 899 * SECOND)
    assert world.published_anew == []
    until(world, SLOT + 910 * SECOND)
    assert anew(world) == [3600.0]


def test_run_that_has_expired_is_not_published_again_and_another_expires_when_it_would_have() -> None:
    for life, is_published in ((200, False), (1000, True)):
        world = new_world(StartTerms("tasks.t", life=life * SECOND))
        world.add_replica({"e": HOUR})
        until(world, SLOT + timedelta(minutes=50))
        ends = [due.expires for due in world.published_anew]
        assert ends == ([SLOT + life * SECOND] * 2 if is_published else [])


@pytest.mark.parametrize("first", [True, False])
def test_slot_that_can_never_be_published_is_not_tried_again(
    world: World, caplog: pytest.LogCaptureFixture, first: bool
) -> None:
    looked: list[int] = []
    world.before_publish = lambda: looked.append(1)
    world.add_replica({"e": HOUR})
    world.refused = {"e"} if first else set()
    until(world, SLOT + SECOND)
    world.refused = {"e"}
    until(world, SLOT + timedelta(minutes=50))
    assert world.published_anew == []
    assert len(looked) == (1 if first else 2)
    assert "slot_published_again" not in caplog.text


def test_entries_that_were_paused_changed_or_removed_since_are_left_alone(world: World) -> None:
    entries = {
        name: {"schedule": 3600.0, "catch_up": "all"}
        for name in ("paused", "resumed", "removed", "as before")
    }
    beat = world.add_beat(**entries)
    until(world, SLOT + SECOND)
    schedule = world.schedule(**entries)
    schedule.pause("paused")
    schedule.pause("resumed")
    world.run(2)
    schedule.resume("resumed")
    beat.follow([entry for entry, _ in beat.entries() if entry.name != "removed"])
    until(world, SLOT + 400 * SECOND)
    assert [due.entry for due in world.published_anew] == ["as before"]


def test_entry_of_which_a_newer_replica_has_another_definition_is_left_to_that(world: World) -> None:
    world.add_beat(e={"schedule": 3600.0})
    until(world, SLOT + SECOND)
    world.add_beat(e={"schedule": 3600.0, "args": (1,)})
    until(world, SLOT + 400 * SECOND)
    assert world.published_anew == []


def test_slot_that_is_only_late_is_published_again_whatever_the_catch_up_rule_says() -> None:
    world = new_world(within=10 * SECOND)
    world.add_replica({"e": HOUR}, rule("none"))
    until(world, SLOT + 100 * SECOND)
    assert anew(world) == [3600.0]


def test_slot_that_is_older_than_the_catch_up_window_is_not_published_again(world: World) -> None:
    world.add_replica({"e": HOUR}, CatchUpRule("all", 200 * SECOND, 15 * SECOND))
    until(world, SLOT + timedelta(minutes=50))
    assert world.published_anew == []


def test_slot_that_an_error_kept_from_being_looked_at_is_looked_at_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_replica({"e": HOUR})
    until(world, SLOT + 200 * SECOND)
    peek: Any = type(world.store)._peek
    failed: list[int] = []

    def failing(self: Any, keys: Any) -> Any:
        if not failed and any(key.startswith("run:") for key in keys):
            failed.append(1)
            raise StoreUnavailable("memory", "away")
        return peek(self, keys)

    monkeypatch.setattr(type(world.store), "_peek", failing)
    until(world, SLOT + 700 * SECOND)
    assert failed
    assert anew(world) == [3600.0]


def test_run_that_may_have_been_finished_and_forgotten_is_not_published_again(world: World) -> None:
    """Nobody could look for longer than runs are remembered."""
    world.add_replica({"e": OnceGrid(SLOT), "tick": IntervalGrid(60 * SECOND)})
    until(world, SLOT + SECOND)
    finish(world, world.published[0])
    world.broker_is_away = True
    until(world, SLOT + timedelta(hours=3))
    world.broker_is_away = False
    until(world, SLOT + timedelta(hours=6))
    assert world.published_anew == []


def test_replica_that_sleeps_before_it_asks_for_the_records_is_not_misled(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.add_replica({"e": OnceGrid(SLOT)})
    until(world, SLOT + SECOND)
    finish(world, world.published[0])
    peek = world.store.peek

    def late(keys: Sequence[str]) -> list[Record | None]:
        if any(key.startswith("run:") for key in keys):
            world.seconds += 3 * 3600
        return peek(keys)

    monkeypatch.setattr(world.store, "peek", late)
    until(world, SLOT + timedelta(hours=6))
    assert world.published_anew == []


def test_full_queue_keeps_no_other_from_being_published_again_once(world: World) -> None:
    replicas = [world.add_replica({"full": HOUR, "e": HOUR}) for _ in range(2)]
    until(world, SLOT + 100 * SECOND)
    world.full_queues = {"full"}
    until(world, SLOT + 500 * SECOND)
    assert [due.entry for due in world.published_anew] == ["e"]
    assert all(replica.is_ready for replica in replicas)
    world.full_queues = set()
    until(world, SLOT + 520 * SECOND)
    assert sorted(due.entry for due in world.published_anew) == ["e", "full"]


def test_tries_that_were_missed_do_not_come_all_at_once(world: World) -> None:
    world.add_replica({"e": OnceGrid(SLOT)})
    until(world, SLOT + 200 * SECOND)
    world.broker_is_away = True
    until(world, SLOT + timedelta(minutes=50))
    world.broker_is_away = False
    until(world, SLOT + timedelta(minutes=59))
    assert len(world.published_anew) == 1


def test_replica_with_many_copies_to_publish_does_the_rest_of_its_work_too(world: World) -> None:
    """Others hear that it is alive, and what is due for the first time is not late."""
    engine = world.add_replica({f"e{number}": HOUR for number in range(4_000)})
    until(world, SLOT + 200 * SECOND)
    said_at: list[float] = []

    def take_long() -> None:
        world.seconds += 1
        said_at.append(engine._company.seconds_to_heartbeat)

    world.before_publish = take_long
    until(world, SLOT + 400 * SECOND)
    assert len(world.published_anew) == 4_000
    assert len(said_at) == 8
    assert min(said_at) > -2


def test_nothing_is_kept_of_slots_that_will_be_over_before_anybody_looks(world: World) -> None:
    engine = world.add_replica({"often": IntervalGrid(10 * SECOND), "e": HOUR})
    until(world, SLOT + 60 * SECOND)
    assert [awaited.name for awaited in engine._unstarted._awaited] == ["e"]


def test_memory_has_a_bound_and_says_so(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unstarted, "MOST_AWAITED", 100)
    world.add_replica({f"e{number}": HOUR for number in range(300)})
    until(world, SLOT + 310 * SECOND)
    assert len(world.published_anew) == 100
    assert caplog.text.count("slots_not_looked_after") == 1


def test_refused_slots_of_tasks_without_records_leave_nothing() -> None:
    world = new_world(None)
    engine = world.add_replica({"e": IntervalGrid(SECOND)})
    world.refused = {"e"}
    world.run(600)
    assert len(engine._unstarted._refused) <= 1


def _does_nothing() -> None: ...


def terms(options: dict[str, Any], **task_options: Any) -> StartTerms | None:
    app = new_app({"e": {"options": options, "schedule": 60}})
    app.task(base=SingletonTask, name="tasks.t", shared=False, **task_options)(_does_nothing)
    entry = SimpleNamespace(task="tasks.t", options=options)
    return terms_of(entry, app, SETTINGS)


@pytest.mark.parametrize(
    ("options", "known"),
    [
        ({}, StartTerms("tasks.t")),
        ({"countdown": 5}, StartTerms("tasks.t", delay=5 * SECOND)),
        ({"expires": 60}, StartTerms("tasks.t", life=60 * SECOND)),
        ({"expires": 60 * SECOND}, StartTerms("tasks.t", life=60 * SECOND)),
        ({"expires": SLOT}, StartTerms("tasks.t", end=SLOT)),
        # What Celery takes, too, and which is not plain: such slots are left alone.
        ({"expires": "2027-01-01T00:00:00"}, None),
        ({"expires": SLOT.replace(tzinfo=None)}, None),
        ({"eta": SLOT}, None),
    ],
)
def test_terms_of_an_entry(options: dict[str, Any], known: StartTerms | None) -> None:
    assert terms(options) == known


@pytest.mark.parametrize(
    "options", [{"on_duplicate": "join"}, {"when_store_down": "run"}, {"when_store_down": "fail"}]
)
def test_task_whose_runs_may_end_without_a_record_has_no_terms(options: dict[str, Any]) -> None:
    assert terms({}, **options) is None
