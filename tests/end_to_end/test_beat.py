"""Replicas of `celery beat`, killed, stopped and cut off: no slot is lost."""

from __future__ import annotations

import signal
import time
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import SingletonScheduler
from celery_singleton_lock.testing.servers import PostgresServer, RabbitMQServer, RedisServer
from tests.support import wrong_clock

from .beats import CONFIG, QUEUE, Published, StartBeats, count, until

ENTRIES = ("a", "b", "c")


def test_killed_and_stopped_replicas_are_missed_by_nobody(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    beats = start_beats(broker.url, locks.url)
    until(lambda: count(broker) >= 9)
    killed, stopped, _ = beats.processes
    killed.kill()
    time.sleep(2.5)
    stopped.send_signal(signal.SIGSTOP)
    time.sleep(4)
    stopped.send_signal(signal.SIGCONT)
    time.sleep(2.5)
    published = Published(broker)
    for entry in ENTRIES:
        published.assert_no_gap(entry)
    # A copy has its original's id. It takes a death between publish and record, which is brief.
    assert published.copies() <= 3
    assert beats.exit_codes() == [-signal.SIGKILL, None, None]


@pytest.mark.parametrize("keep_data", [True, False], ids=["with its data", "empty"])
def test_store_may_be_restarted(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats, keep_data: bool
) -> None:
    beats = start_beats(broker.url, locks.url)
    until(lambda: count(broker) >= 9)
    locks.kill()
    time.sleep(2)
    locks.restart(keep_data=keep_data)
    time.sleep(5)
    published = Published(broker)
    for entry in ENTRIES:
        published.assert_no_gap(entry)
    assert published.copies() <= 3
    assert beats.exit_codes() == [None, None, None]
    for log in beats.logs:
        assert log.count("beat_trouble_began") == log.count("beat_trouble_ended") == 1


def test_broker_may_be_away_for_ten_seconds(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    beats = start_beats(broker.url, locks.url)
    until(lambda: count(broker) >= 9)
    broker.kill()
    time.sleep(10)
    broker.restart()
    before = count(broker)
    until(lambda: count(broker) > before + 33)
    published = Published(broker)
    for entry in ENTRIES:
        published.assert_no_gap(entry)
    assert beats.exit_codes() == [None, None, None]
    for log in beats.logs:
        assert "beat_trouble_began reason=the broker is away" in log
        assert "beat_tick_failed" not in log
        assert "refused" not in log.replace("Connection refused", "")


def test_broker_that_is_silent_does_not_hang_beat(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    beats = start_beats(broker.url, locks.url, replicas=1)
    until(lambda: count(broker) >= 6)
    broker.pause()
    until(lambda: "beat_trouble_began" in beats.logs[0])
    broker.resume()
    until(lambda: "beat_trouble_ended" in beats.logs[0])
    time.sleep(2)
    published = Published(broker)
    for entry in ENTRIES:
        published.assert_no_gap(entry)
    assert "beat_tick_failed" not in beats.logs[0]


def test_clean_stop_hands_over_at_once(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    beats = start_beats(broker.url, locks.url, replicas=2)
    until(lambda: count(broker) >= 9)
    beats.processes[0].terminate()
    assert beats.processes[0].wait(10) == 0
    time.sleep(3)
    published = Published(broker)
    for entry in ENTRIES:
        published.assert_no_gap(entry)
    assert published.copies() == 0


def test_burst_of_five_thousand_with_a_replica_stopped_in_its_middle(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    config = CONFIG.replace('"schedule": 1.0', '"schedule": 30.0').replace(
        '"abc"', "map(str, range(5000))"
    )
    beats = start_beats(broker.url, locks.url, config=config)
    until(lambda: len(locks.connect().keys("singleton:beat:proj:*")) == 5000)
    broker.connect().delete(QUEUE)  # what was due while they began
    until(lambda: 0 < count(broker) < 5000, within=45)
    beats.processes[0].send_signal(signal.SIGSTOP)
    until(lambda: len({run.id for run in Published(broker).runs}) >= 5000, within=30)
    beats.processes[0].send_signal(signal.SIGCONT)
    time.sleep(2)
    published = Published(broker)
    first = max(run.slot for run in published.runs)
    assert len({run.entry for run in published.runs if run.slot == first}) == 5000
    assert beats.exit_codes() == [None, None, None]


def test_all_beats_away_for_a_while_is_caught_up_by_the_latest_slot(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    config = CONFIG + "    app.conf.singleton_catch_up = 'latest'\n"
    beats = start_beats(broker.url, locks.url, replicas=1, config=config)
    until(lambda: count(broker) >= 6)
    beats.processes[0].kill()
    beats.processes[0].wait()
    last = Published(broker).slots_of("a")[-1]
    time.sleep(20)  # fifteen seconds would only be late
    beats.start()
    until(lambda: Published(broker).slots_of("a")[-1] > last)
    time.sleep(2)
    slots = Published(broker).slots_of("a")
    gaps = [(b - a).total_seconds() for a, b in pairwise(slots)]
    assert sum(gap > 1 for gap in gaps) == 1
    assert "slot_missed" in beats.logs[1]


@pytest.mark.parametrize("offset", ["-120s", "+120s"])
def test_replica_whose_clock_is_wrong_is_neither_early_nor_late(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats, offset: str
) -> None:
    beats = start_beats(broker.url, locks.url, replicas=1)
    beats.start(**wrong_clock(offset))
    until(lambda: count(broker) >= 9)
    beats.processes[0].kill()  # from now on, the one with the wrong clock is alone
    time.sleep(5)
    published = Published(broker)
    now = datetime.now(UTC)
    for entry in ENTRIES:
        published.assert_no_gap(entry)
        assert timedelta(0) < now - published.slots_of(entry)[-1] < timedelta(seconds=3)
    assert beats.exit_codes() == [-signal.SIGKILL, None]


def test_rabbitmq_as_broker_and_postgres_as_store(
    rabbitmq: RabbitMQServer, postgres: PostgresServer, start_beats: StartBeats
) -> None:
    beats = start_beats(rabbitmq.url, postgres.url)
    slots: list[str] = []
    app = Celery(broker=rabbitmq.url, set_as_current=False)
    with app.connection_for_read() as connection:
        queue: Any = connection.SimpleQueue(QUEUE)
        while len(slots) < 15:
            message = queue.get(timeout=30)
            if message.headers["singleton_entry"] == "a":
                slots.append(message.headers["singleton_slot"])
            message.ack()
        queue.close()
    assert slots == sorted(set(slots))
    assert beats.exit_codes() == [None, None, None]


def test_entry_that_cannot_be_sent_is_reported_and_holds_up_nobody(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    config = CONFIG + '    app.conf.beat_schedule["b"]["args"] = (object(),)\n'
    beats = start_beats(broker.url, locks.url, replicas=1, config=config)
    until(lambda: count(broker) >= 6)
    published = Published(broker)
    published.assert_no_gap("a")
    assert published.slots_of("b") == []
    assert "reason='refused'" in beats.logs[0]


def test_lazy_scheduler_does_no_io() -> None:
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.beat_schedule = {"e": {"task": "t", "schedule": 1.0}}
    scheduler = SingletonScheduler(app, lazy=True)
    assert "redis://127.0.0.1:1/0" in scheduler.info
    scheduler.close()
    scheduler.close()
