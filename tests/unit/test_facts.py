"""What beat tells those who listen, in virtual time; and that a listener harms nobody."""

from __future__ import annotations

from datetime import timedelta

import pytest

from celery_singleton_lock.beat.entries import PlannedEntry
from celery_singleton_lock.beat.plan import CatchUpRule, entry_key
from celery_singleton_lock.beat.slots import IntervalGrid
from celery_singleton_lock.core.facts import (
    Fact,
    Listeners,
    MembersChanged,
    RunPublishedAgain,
    TroubleBegan,
    TroubleEnded,
)

from .test_reaper import begin_run
from .world import SECOND, START, World


@pytest.fixture
def world() -> World:
    return World()


def told_by(world: World) -> list[Fact]:
    """Of a replica that is added by this, with an entry that is due every second."""
    listeners, told = Listeners(), list[Fact]()
    listeners.add(told.append)
    engine = world._new_engine(listeners=listeners)
    rule = CatchUpRule("latest", timedelta(days=1), 15 * SECOND)
    engine.follow([PlannedEntry("e", entry_key("app", "e"), IntervalGrid(SECOND), rule)])
    return told


def test_failing_listener_is_logged_and_keeps_nobody_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listeners, told = Listeners(), list[Fact]()

    def fail(fact: Fact) -> None:
        raise OSError("disk full")

    listeners.add(fail)
    listeners.add(told.append)
    fact = TroubleEnded(at=START, part="store")
    listeners.tell(fact)
    assert told == [fact]
    assert "listener_failed fact=TroubleEnded" in caplog.text


def test_listener_that_was_removed_is_told_nothing_more() -> None:
    listeners, told = Listeners(), list[Fact]()
    listeners.add(told.append)
    assert listeners
    listeners.remove(told.append)
    listeners.tell(TroubleEnded(at=START, part="store"))
    assert (bool(listeners), told) == (False, [])


def test_members_are_told_when_they_change_and_only_then(world: World) -> None:
    told = told_by(world)
    world.run(5)
    other = world.add_replica({})
    world.run(5)
    world.kill(other)
    other.leave()
    world.run(5)
    assert [len(fact.members) for fact in told if isinstance(fact, MembersChanged)] == [1, 2, 1]


def test_trouble_with_the_broker_that_follows_one_with_the_store_is_another(world: World) -> None:
    told = told_by(world)
    world.run(3)
    world.store.is_away = True
    world.run(3)
    world.store.is_away, world.broker_is_away = False, True
    world.run(3)
    world.broker_is_away = False
    world.run(3)
    troubles = [fact for fact in told if isinstance(fact, TroubleBegan | TroubleEnded)]
    assert [(type(fact), fact.part) for fact in troubles] == [
        (TroubleBegan, "store"),
        (TroubleEnded, "store"),
        (TroubleBegan, "broker"),
        (TroubleEnded, "broker"),
    ]
    assert troubles[0].at - START < timedelta(seconds=5)


def test_run_that_is_published_again_is_told_with_what_its_record_knows(world: World) -> None:
    told = told_by(world)
    world.run(2)
    slot = "2026-11-18T11:00:00Z"
    lease = begin_run(world, run="1", task="t", entry="nightly", slot=slot, worker="w1@host")
    world.run(33)
    [again] = [fact for fact in told if isinstance(fact, RunPublishedAgain)]
    assert (again.run.id, again.run.task, again.run.entry) == ("1", "t", "nightly")
    assert again.run.slot == START - timedelta(hours=1)
    assert (again.fence, again.worker, again.is_whole) == (lease.fence, "w1@host", True)
