"""What replicas of beat do, with every fault on purpose, in virtual time."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from celery_singleton_lock.beat.entries import BrokerUnavailable
from celery_singleton_lock.beat.plan import CatchUpRule
from celery_singleton_lock.beat.slots import IntervalGrid
from celery_singleton_lock.core.models import RecordState

from .world import SECOND, START, World


@pytest.fixture
def world() -> World:
    return World()


EVERY_SECOND = {"e": IntervalGrid(SECOND)}


def test_every_slot_is_published_once_by_three_replicas(world: World) -> None:
    for _ in range(3):
        world.add_replica(EVERY_SECOND)
    world.run(60.5)
    assert world.slots_of("e") == [float(n) for n in range(1, 61)]


def test_first_start_publishes_nothing_early(world: World) -> None:
    world.add_replica({"e": IntervalGrid(timedelta(hours=1))})
    world.run(3599)
    assert world.published == []
    world.run(2)
    assert world.slots_of("e") == [3600.0]


def test_killed_replica_is_missed_by_nobody(world: World) -> None:
    replicas = [world.add_replica({f"e{n}": IntervalGrid(SECOND) for n in range(20)}) for _ in range(3)]
    for replica in replicas[:2]:
        world.run(10.5)
        world.kill(replica)
    world.run(20.5)
    for number in range(20):
        assert world.slots_of(f"e{number}") == [float(n) for n in range(1, 42)]


def test_replica_that_died_between_claim_and_publish_is_taken_over_in_order(world: World) -> None:
    class Killed(BaseException):
        pass

    def die() -> None:
        world.before_publish = lambda: None
        world.store.is_away = True  # the dead release nothing
        raise Killed

    replicas = [world.add_replica(EVERY_SECOND) for _ in range(2)]
    world.run(5.5)
    world.before_publish = die
    with pytest.raises(Killed):
        world.run(2)
    world.store.is_away = False
    assert len(world._wakes) == 1  # the other one lives
    assert len(replicas) == 2
    world.run(10.3)
    slots = world.slots_of("e")
    assert slots == sorted(slots)
    assert set(slots) == {float(n) for n in range(1, int(world.seconds) - 1000 + 1)}


class SleepyGrid(IntervalGrid):
    """Stops its replica in the middle of a tick, after the claim, for as long as it is told."""

    def __init__(self, world: World) -> None:
        super().__init__(SECOND)
        self._world = world
        self.sleep_for = 0.0

    def next(self, after: datetime) -> datetime | None:
        is_claimed = any(record.owner.startswith("replica 1@") for record in self._world.store.scan()
                         if record.state is RecordState.HELD)  # fmt: skip
        if self.sleep_for and is_claimed:
            sleep, self.sleep_for = self.sleep_for, 0.0
            self._world.run(sleep)  # the others go on
        return super().next(after)


def test_replica_that_slept_after_its_claim_publishes_nothing_stale(world: World) -> None:
    grid, names = SleepyGrid(world), [f"e{n}" for n in range(8)]
    world.add_replica(dict.fromkeys(names, grid))
    world.run(3.5)
    world.add_replica(dict.fromkeys(names, IntervalGrid(SECOND)))
    world.run(3)
    grid.sleep_for = 8
    world.run(20)
    assert grid.sleep_for == 0
    for name in names:
        assert world.slots_of(name) == [float(n) for n in range(1, int(world.seconds - 1000) + 1)]


def test_connecting_to_the_broker_uses_up_nobodys_lease(world: World) -> None:
    for _ in range(2):
        world.add_replica(EVERY_SECOND)
    world.run(3.5)
    world.seconds_to_connect = 5
    world.run(20)
    assert world.slots_of("e") == [float(n) for n in range(1, int(world.seconds - 1000) + 1)]


def test_replica_that_cannot_publish_lets_another_do_it_at_once(world: World) -> None:
    names = [f"e{n}" for n in range(8)]
    broken = world.add_replica(dict.fromkeys(names, IntervalGrid(SECOND)))
    world.add_replica(dict.fromkeys(names, IntervalGrid(SECOND)))

    def fail_one() -> None:
        if world.at_work is broken:
            raise BrokerUnavailable("its own connection is broken")

    world.before_publish = fail_one
    lags: list[float] = []
    for _ in range(200):
        world.run(0.1)
        new = world.published[len(lags) :]
        lags += [(world.seconds - 1000) - (due.slot - START).total_seconds() for due in new]
    for name in names:
        assert world.slots_of(name)[:15] == [float(n) for n in range(1, 16)]
    assert max(lags) < 2  # and not the slot ttl of three seconds


def test_slots_during_an_outage_of_the_broker_come_when_it_is_back(world: World) -> None:
    for _ in range(2):
        world.add_replica(EVERY_SECOND)
    world.run(5.5)
    world.broker_is_away = True
    world.run(10)
    assert len(world.published) == 5
    world.broker_is_away = False
    world.run(5)
    assert world.slots_of("e") == [float(n) for n in range(1, 21)]


def test_slots_during_an_outage_of_the_store_come_when_it_is_back(world: World) -> None:
    replicas = [world.add_replica(EVERY_SECOND) for _ in range(2)]
    world.run(5.5)
    world.store.is_away = True
    world.run(1)
    for _ in range(90):
        world.run(0.1)
        assert not any(replica.is_ready for replica in replicas)
    world.store.is_away = False
    world.run(5)
    assert world.slots_of("e") == [float(n) for n in range(1, 21)]
    assert all(replica.is_ready for replica in replicas)


def test_outage_is_told_once_when_it_begins_and_once_when_it_ends(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    replica = world.add_replica({"e": IntervalGrid(timedelta(seconds=7))})
    world.run(6.95)
    replica.tick()  # a heartbeat may be due just now
    world.store.is_away = True
    world.run(10)
    world.store.is_away = False
    world.run(5)
    told = [record.getMessage().split()[0] for record in caplog.records]
    assert told == ["beat_trouble_began", "beat_trouble_ended"]


def test_store_that_goes_away_between_publish_and_record_repeats_nothing_while_we_live(
    world: World,
) -> None:
    world.add_replica(EVERY_SECOND)
    world.run(3.5)

    def go_away() -> None:
        world.store.is_away = True
        world.before_publish = lambda: None

    world.before_publish = go_away
    world.run(8)
    world.store.is_away = False
    world.run(8)
    assert world.slots_of("e") == [float(n) for n in range(1, 20)]


def test_slot_that_is_recorded_late_is_not_published_by_another(world: World) -> None:
    tens = {"e": IntervalGrid(10 * SECOND)}
    for _ in range(2):
        world.add_replica(tens)
    world.run(9)

    def go_away() -> None:
        world.store.is_away = True
        world.before_publish = lambda: None

    world.before_publish = go_away
    world.run(2)
    world.store.is_away = False
    world.run(8)
    assert world.slots_of("e") == [10.0]


def test_restart_after_a_gap_catches_up_and_tells_what_was_missed(world: World) -> None:
    minutely = {"e": IntervalGrid(timedelta(minutes=1))}
    first = world.add_replica(minutely)
    world.run(61)
    world.kill(first)
    world.run(600)
    world.add_replica(minutely)
    world.run(30)
    assert world.slots_of("e") == [60.0, 660.0]
    assert [(due.slot - START).total_seconds() for due in world.missed] == [
        float(60 * n) for n in range(2, 11)
    ]


def test_entry_whose_only_slot_is_beyond_the_window_does_not_keep_beat_busy(world: World) -> None:
    hourly = {"e": IntervalGrid(timedelta(hours=1))}
    brief = CatchUpRule("all", timedelta(minutes=5), 15 * SECOND)
    first = world.add_replica(hourly, brief)
    world.run(10)
    world.kill(first)
    world.run(3600 + 1800)
    world.add_replica(hourly, brief)
    before = world.store.calls
    world.run(10)
    assert world.store.calls - before < 30
    assert world.published == []
    assert [(due.slot - START).total_seconds() for due in world.missed] == [3600.0]
    world.run(1800)
    assert world.slots_of("e") == [7200.0]


def test_store_that_forgot_is_told_how_far_the_entries_are(world: World) -> None:
    for _ in range(2):
        world.add_replica(EVERY_SECOND)
    world.run(10.5)
    world.store.forget()
    world.run(10)
    assert world.slots_of("e") == [float(n) for n in range(1, 21)]
    newcomer = world.add_replica(EVERY_SECOND)
    world.run(10)
    assert newcomer.is_ready
    assert world.slots_of("e") == [float(n) for n in range(1, 31)]


def test_slot_is_not_published_twice_because_the_store_forgot(world: World) -> None:
    for _ in range(2):
        world.add_replica(EVERY_SECOND)
    world.run(10.05)  # one has published, the other has not looked yet
    world.store.forget()
    world.run(10)
    assert world.slots_of("e") == [float(n) for n in range(1, 21)]


def test_position_that_was_put_back_outlives_all_replicas(world: World) -> None:
    minutely = {"e": IntervalGrid(timedelta(minutes=1))}
    replica = world.add_replica(minutely)
    world.run(61)
    world.store.forget()
    world.run(5)
    world.kill(replica)
    world.run(600)
    world.add_replica(minutely)
    world.run(5)
    assert world.slots_of("e") == [60.0, 660.0]


def test_replica_that_leaves_hands_over_at_once(world: World) -> None:
    replicas = [world.add_replica(EVERY_SECOND) for _ in range(3)]
    world.run(5.5)
    for replica in replicas[:2]:
        replica.leave()
        replica.leave()
        world.kill(replica)
    world.run(5)
    assert world.slots_of("e") == [float(n) for n in range(1, 11)]


def test_burst_goes_in_batches_and_not_one_by_one(world: World) -> None:
    world.add_replica({f"e{n}": IntervalGrid(timedelta(minutes=1)) for n in range(10_000)})
    world.run(59)
    before = world.store.calls
    world.run(20)
    assert len(world.published) == 10_000
    assert world.store.calls - before < 150


def test_fifty_replicas_claim_a_slot_hardly_more_than_once(world: World) -> None:
    entries = {f"e{n}": IntervalGrid(timedelta(minutes=1)) for n in range(200)}
    for _ in range(50):
        world.add_replica(entries)
    world.run(30)
    world.store.claims = 0
    world.run(120)
    assert len(world.published) == 400
    assert world.store.claims <= 1.2 * 400
