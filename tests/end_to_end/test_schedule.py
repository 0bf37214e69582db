"""The schedule is changed while replicas of `celery beat` run, and runs of the dead are reaped."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection
from kombu.entity import Queue

from celery_singleton_lock import Granted, LeaseRequest, open_schedule, open_store
from celery_singleton_lock.beat.schedule import Schedule
from celery_singleton_lock.core import headers
from celery_singleton_lock.recovery import message_note
from celery_singleton_lock.testing.servers import PostgresServer, RedisServer
from tests.integration.command_line import CommandLine

from .beats import QUEUE, Beats, Published, StartBeats, count, until

CONFIG = """
    import os
    app = Celery("proj", broker=os.environ["BROKER"])
    app.conf.singleton_lock_url = os.environ["LOCK"]
    app.conf.beat_schedule = {
        "hourly": {"task": "proj.tick", "schedule": 3600.0, "catch_up": "none"},
        "often": {"task": "proj.tick", "schedule": float(os.environ.get("OFTEN", 1))},
    }
"""
SEEN_WITHIN = 1.0
NOISE = 6.0
"""The machine may be busy: how much later than promised a test looks again."""


@pytest.fixture(params=["valkey", "postgres"])
def lock_url(request: pytest.FixtureRequest, locks: RedisServer) -> str:
    if request.param == "valkey":
        return locks.url
    postgres: PostgresServer = request.getfixturevalue("postgres")
    return postgres.url


def operator_app(broker: RedisServer, lock_url: str) -> Celery:
    app = Celery("proj", broker=broker.url, set_as_current=False)
    app.conf.singleton_lock_url = lock_url
    app.conf.singleton_key_prefix = "schedule-test"
    app.conf.beat_schedule = {
        "hourly": {"task": "proj.tick", "schedule": 3600.0},
        "often": {"task": "proj.tick", "schedule": 1.0},
    }
    return app


def operator(broker: RedisServer, lock_url: str) -> Schedule:
    return open_schedule(operator_app(broker, lock_url), by="operator")


@pytest.fixture
def beats(broker: RedisServer, lock_url: str, start_beats: StartBeats) -> Iterator[Beats]:
    config = CONFIG + '    app.conf.singleton_key_prefix = "schedule-test"\n'
    beats = start_beats(broker.url, lock_url, config=config)
    until(lambda: count(broker) >= 1)
    yield beats
    assert beats.exit_codes() == [None, None, None]


def entries(broker: RedisServer) -> list[str]:
    return [run.entry for run in Published(broker).runs]


def is_alone(entry: str, broker: RedisServer) -> bool:
    """Whether of three slots of it, a second apart, all were published and nothing else in between."""
    return entries(broker)[-3:] == [entry] * 3


def test_schedule_is_changed_at_run_time(broker: RedisServer, lock_url: str, beats: Beats) -> None:
    schedule = operator(broker, lock_url)
    assert len(schedule.replicas()) == 3
    schedule.add("new", "proj.tick", 0.5, args=("x",), options={"headers": {"who": "me"}})
    until(lambda: entries(broker).count("new") >= 4, within=2 + SEEN_WITHIN + NOISE)
    schedule.pause("new", why="to see")
    until(lambda: is_alone("often", broker), within=SEEN_WITHIN + NOISE + 3)
    paused = entries(broker).count("new")
    schedule.resume("new")
    until(lambda: entries(broker).count("new") > paused)
    schedule.remove("new")
    until(lambda: is_alone("often", broker), within=SEEN_WITHIN + NOISE + 3)
    published = Published(broker)
    assert published.copies() == 0
    published.assert_no_gap("often")
    assert {state.name for state in schedule.entries()} == {"hourly", "often"}


def test_jobs_are_done_once_and_leave_the_schedule_alone(
    broker: RedisServer, lock_url: str, beats: Beats
) -> None:
    schedule = operator(broker, lock_url)
    run = schedule.trigger("hourly")
    until(lambda: run in {each.id for each in Published(broker).runs}, within=SEEN_WITHIN + NOISE)
    now = datetime.now(UTC)
    backfill = schedule.backfill("hourly", now - timedelta(days=30), now)
    assert backfill.slots == 720
    once = now + timedelta(seconds=4)
    schedule.add("once", "proj.tick", once)
    until(lambda: entries(broker).count("hourly") >= 721)
    until(lambda: "once" in entries(broker))
    until(lambda: not schedule.jobs())
    until(lambda: "once" not in {state.name for state in schedule.entries()})
    time.sleep(2)
    published = Published(broker)
    assert published.copies() == 0
    assert entries(broker).count("hourly") == 721
    assert published.slots_of("once") == [once]
    published.assert_no_gap("often")
    client: Any = broker.connect()
    sent = [json.loads(text)["headers"] for text in client.lrange(QUEUE, 0, -1)]
    in_turn = [each[headers.ENTRY] for each in sent if each.get(headers.IN_TURN)]
    assert in_turn == ["hourly"] * 720


@pytest.mark.parametrize("lock_url", ["valkey"], indirect=True)
def test_backfill_on_the_command_line_waits_until_it_is_done(
    broker: RedisServer, lock_url: str, beats: Beats
) -> None:
    line = CommandLine(operator_app(broker, lock_url), "schedule")
    assert "published" in line.ok("backfill", "hourly", "--start", "3d ago", "--yes")
    assert entries(broker).count("hourly") == 72
    assert operator(broker, lock_url).jobs() == []


def is_every_fifth_second(slots: list[datetime]) -> bool:
    gaps = {(after - before).total_seconds() for before, after in pairwise(slots)}
    return gaps == {5.0} and slots[0].second % 5 == 0


def test_new_config_wins_while_old_replicas_run(
    broker: RedisServer, locks: RedisServer, start_beats: StartBeats
) -> None:
    beats = start_beats(broker.url, locks.url, replicas=2, config=CONFIG)
    until(lambda: count(broker) >= 4)
    beats.start(OFTEN="5")
    until(lambda: "beat_entry_changed" in beats.logs[2])
    until(lambda: is_every_fifth_second(sorted(set(Published(broker).slots_of("often")))[-3:]))
    beats.processes[2].kill()
    before = set(Published(broker).slots_of("often"))
    until(lambda: len(set(Published(broker).slots_of("often")) - before) >= 5)
    assert beats.exit_codes() == [None, None, -signal.SIGKILL]


@pytest.mark.parametrize("lock_url", ["valkey"], indirect=True)
def test_run_of_a_dead_worker_is_published_again_as_it_was(
    broker: RedisServer, lock_url: str, beats: Beats
) -> None:
    app: Any = Celery("proj", broker=broker.url, set_as_current=False)
    app.send_task("proj.work", (1,), {"two": "é"}, task_id="t-1", queue="work", retries=2)
    with Connection(broker.url) as connection:
        queue = Queue("work", channel=connection.channel())
        message = queue.get(no_ack=True)
        note = json.loads(message_note.encode(message) or "")
        store = open_store(lock_url, prefix="schedule-test")
        ttl = timedelta(seconds=2)
        [answer] = store.acquire([LeaseRequest("run:t-1", "dead", ttl, note={"message": note})])
        assert isinstance(answer, Granted)
        assert queue.get(no_ack=True) is None
        again = until(lambda: queue.get(no_ack=True), within=4 + NOISE)
        assert again.body == message.body
        assert again.headers == {**message.headers, headers.AGAIN: True}
        assert again.properties["correlation_id"] == "t-1"
        assert again.delivery_info["routing_key"] == message.delivery_info["routing_key"]
        time.sleep(3)
        assert queue.get(no_ack=True) is None
    assert sum(log.count("run_published_again") for log in beats.logs) == 1
    assert QUEUE != "work"
