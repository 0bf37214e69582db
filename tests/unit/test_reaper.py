"""Runs whose worker died: published again, once, and by nobody else. In virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from celery_singleton_lock.core.models import (
    FINISHED,
    Granted,
    Lease,
    LeaseRequest,
    Park,
    Release,
)

from .world import SECOND, World


@pytest.fixture
def world() -> World:
    world = World()
    for _ in range(3):
        world.add_replica({})
    world.run(2)
    return world


def message_of(run: str) -> dict[str, Any]:
    """As it is noted in the record of a run."""
    return {
        "body": "[]",
        "headers": {"id": run, "retries": 2},
        "properties": {},
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "exchange": "",
        "routing_key": "work",
    }


def begin_run(world: World, name: str = "run:1", owner: str = "worker 1", **note: object) -> Lease:
    message = {"message": message_of(name)} | note
    [answer] = world.store.acquire([LeaseRequest(name, owner, 30 * SECOND, position=3, note=message)])
    assert isinstance(answer, Granted), answer
    return answer.lease


def test_run_of_a_dead_worker_is_published_again_within_its_ttl_and_two_seconds(world: World) -> None:
    begin_run(world)
    world.run(29.9)
    assert world.published_again == []
    world.run(2.1)
    assert world.published_again == [message_of("run:1")]


def test_run_is_published_again_once_however_long_the_queue_is(world: World) -> None:
    begin_run(world)
    world.run(600)
    assert len(world.published_again) == 1


def test_run_that_dies_again_is_published_again_again(world: World) -> None:
    begin_run(world)
    world.run(40)
    begin_run(world, owner="worker 2")
    world.run(40)
    assert len(world.published_again) == 2


def test_run_that_is_renewed_finished_or_parked_is_left_alone(world: World) -> None:
    renewed, finished, parked = (begin_run(world, f"run:{n}") for n in range(3))
    world.run(5)
    world.store.release(
        [
            Release(finished, position=FINISHED),
            Release(parked, position=3, park=Park("run", 10 * SECOND)),
        ]
    )
    for _ in range(20):
        assert world.store.renew([renewed]) == [True]
        world.run(10)
    assert world.published_again == []


def test_run_without_its_message_is_left_to_the_broker_and_not_in_the_way(world: World) -> None:
    for number in range(150):
        begin_run(world, f"run:large {number}", message=None)
    begin_run(world, "run:small")
    world.run(32)
    assert world.published_again == [message_of("run:small")]
    assert world.store.expired() == []


def test_many_dead_runs_are_published_again_each_once(world: World) -> None:
    for number in range(350):
        begin_run(world, f"run:{number}")
    world.run(33)
    assert len({message["headers"]["id"] for message in world.published_again}) == 350
    assert len(world.published_again) == 350


def test_run_is_published_again_when_the_broker_is_back(world: World) -> None:
    begin_run(world)
    world.broker_is_away = True
    world.run(60)
    assert world.published_again == []
    world.broker_is_away = False
    world.run(5)
    assert len(world.published_again) == 1


def test_holders_get_a_ttl_to_come_back_after_an_outage_of_the_store(world: World) -> None:
    lease = begin_run(world)
    world.store.is_away = True
    world.run(40)
    world.store.is_away = False
    world.run(20)
    assert world.published_again == []
    [answer] = world.store.acquire(
        [LeaseRequest(lease.key, lease.owner, 30 * SECOND, reclaim=lease.fence)]
    )
    assert isinstance(answer, Granted)
    world.run(20)
    assert world.published_again == []


def test_run_that_nobody_comes_back_to_after_an_outage_is_published_again(world: World) -> None:
    begin_run(world)
    world.store.is_away = True
    world.run(40)
    world.store.is_away = False
    world.run(33)
    assert len(world.published_again) == 1


def test_replica_that_reaps_in_vain_is_replaced(world: World) -> None:
    for engine in [engine for _, _, engine in world._wakes][:2]:
        world.kill(engine)
    begin_run(world)
    world.run(33)
    assert len(world.published_again) == 1


def test_run_is_not_published_twice_when_its_reaper_is_interrupted(world: World) -> None:
    begin_run(world)
    world.store.fail_dismissals = True
    world.run(40)
    world.store.fail_dismissals = False
    world.run(40)
    assert len(world.published_again) == 1
    assert world.store.expired() == []


def test_idle_replicas_ask_the_store_less_than_five_times_a_second_in_all(world: World) -> None:
    world.run(10)
    before = world.store.calls
    world.run(60)
    assert 60 * 3 < world.store.calls - before < 60 * 5
