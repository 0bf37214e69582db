"""Replicas of `celery beat` with the schedule in Django's database."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock.testing.servers import PostgresServer, RedisServer
from tests import django_database
from tests.support import start_or_skip

from .beats import QUEUE, Published, count, until
from .django_beats import DjangoBeats

django_database.set_up()

from django.utils import timezone  # noqa: E402
from django_celery_beat.models import (  # noqa: E402
    ClockedSchedule,
    IntervalSchedule,
    PeriodicTask,
    PeriodicTasks,
)

StartBeats = Callable[..., DjangoBeats]


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    server = start_or_skip(PostgresServer())
    yield server
    server.stop()


@pytest.fixture
def start_beats(tmp_path: Path, broker: RedisServer) -> Iterator[StartBeats]:
    started: list[DjangoBeats] = []

    def start(replicas: int = 3, database: django_database.Database | None = None) -> DjangoBeats:
        database = database or django_database.in_file(tmp_path / "django.db")
        django_database.use(database)
        for name in "abc":
            every_second(name)
        beats = DjangoBeats(tmp_path, database, broker=broker.url)
        started.append(beats)
        for _ in range(replicas):
            beats.start()
        return beats

    yield start
    for beats in started:
        beats.end()
    django_database.leave()


def every_second(name: str, **fields: Any) -> Any:
    second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    defaults = {"interval": second, "task": "proj.tick", "args": json.dumps([name])}
    return PeriodicTask.objects.create(name=name, **defaults | fields)


def row(name: str) -> Any:
    return PeriodicTask.objects.get(name=name)


def times_published(broker: RedisServer, entry: str) -> int:
    return sum(run.entry == entry for run in Published(broker).runs)


def arguments_of(broker: RedisServer, entry: str) -> list[str]:
    client: Any = broker.connect()
    headers = [json.loads(text)["headers"] for text in reversed(client.lrange(QUEUE, 0, -1))]
    return [each["argsrepr"] for each in headers if each["singleton_entry"] == entry]


def end_cleanly(beats: DjangoBeats) -> None:
    for process in beats.processes:
        if process.poll() is None:
            process.terminate()
            assert process.wait(20) == 0


def test_killed_replica_is_missed_by_nobody(broker: RedisServer, start_beats: StartBeats) -> None:
    beats = start_beats()
    # What came due before they began is published at once, and counted a second later.
    until(lambda: row("a").total_run_count >= 5)
    beats.processes[0].kill()
    time.sleep(5)
    end_cleanly(beats)
    published = Published(broker)
    for entry in "abc":
        published.assert_no_gap(entry)
        assert row(entry).last_run_at == published.slots_of(entry)[-1]
        # What was not written when it was killed was of the last second or so.
        assert 0 <= times_published(broker, entry) - row(entry).total_run_count <= 3
    # A copy has its original's id. It takes a death between publish and record, which is brief.
    assert published.copies() <= 3
    assert beats.exit_codes() == [-signal.SIGKILL, 0, 0]


def test_runs_of_all_replicas_are_counted(broker: RedisServer, start_beats: StartBeats) -> None:
    beats = start_beats()
    until(lambda: count(broker) >= 15)
    until(lambda: row("a").total_run_count >= 3)  # while they run, not only at the end
    end_cleanly(beats)
    published = Published(broker)
    assert published.copies() == 0
    for entry in "abc":
        published.assert_no_gap(entry)
        assert row(entry).total_run_count == times_published(broker, entry)
        assert row(entry).last_run_at == published.slots_of(entry)[-1]


def test_what_is_done_in_the_admin_is_seen_by_all(broker: RedisServer, start_beats: StartBeats) -> None:
    beats = start_beats()
    until(lambda: count(broker) >= 9)

    made = every_second("made")
    until(lambda: times_published(broker, "made") >= 3, within=10)

    changed = row("a")
    changed.args = '["changed"]'
    changed.save()
    until(lambda: arguments_of(broker, "a")[-3:] == ["['changed']"] * 3, within=10)

    def set_enabled(enabled: bool) -> None:  # as the admin's actions do
        PeriodicTask.objects.filter(name="b").update(enabled=enabled)
        PeriodicTasks.update_changed()

    set_enabled(False)
    row("c").delete()
    time.sleep(3)
    before = [times_published(broker, entry) for entry in "bc"]
    time.sleep(3)
    assert [times_published(broker, entry) for entry in "bc"] == before
    resumed_at = timezone.now()
    set_enabled(True)
    until(lambda: times_published(broker, "b") >= before[0] + 3, within=10)

    end_cleanly(beats)
    published = Published(broker)
    assert published.copies() == 0
    published.assert_no_gap("a")
    published.assert_no_gap("made")
    assert published.slots_of("made")[0] >= made.date_changed
    # Nothing of the time in which it was disabled is made up for.
    old, new = published.slots_of("b")[: before[0]], published.slots_of("b")[before[0] :]
    assert new[0] - old[-1] > timedelta(seconds=3)
    assert new[0] >= resumed_at - timedelta(seconds=2)
    assert times_published(broker, "c") == before[1]


def test_one_off_is_published_once_by_three_replicas_and_disabled(
    broker: RedisServer, start_beats: StartBeats
) -> None:
    beats = start_beats()
    until(lambda: count(broker) >= 9)
    soon = ClockedSchedule.objects.create(clocked_time=timezone.now() + timedelta(seconds=3))
    past = ClockedSchedule.objects.create(clocked_time=timezone.now() - timedelta(days=3))
    clocked = {"task": "proj.tick", "one_off": True}
    for number in range(5):
        PeriodicTask.objects.create(name=f"soon {number}", clocked=soon, **clocked)
    PeriodicTask.objects.create(name="past", clocked=past, **clocked)
    every_second("next second", one_off=True)
    ones = PeriodicTask.objects.filter(one_off=True)
    until(lambda: not ones.filter(enabled=True).exists(), within=20)

    ones.filter(name__in=["past", "next second"]).update(enabled=True)  # and once more
    PeriodicTasks.update_changed()
    until(lambda: times_published(broker, "past") == 2, within=10)
    until(lambda: not ones.filter(enabled=True).exists(), within=10)
    time.sleep(2)
    end_cleanly(beats)
    assert Published(broker).copies() == 0
    for one in ones:
        times = 2 if one.name in ("past", "next second") else 1
        assert times_published(broker, one.name) == one.total_run_count == times, one.name
        assert one.last_run_at == Published(broker).slots_of(one.name)[-1]
    assert Published(broker).slots_of("soon 0") == [soon.clocked_time]
    for entry in "abc":
        Published(broker).assert_no_gap(entry)


def test_database_may_be_silent_or_away(
    broker: RedisServer, own_postgres: PostgresServer, start_beats: StartBeats
) -> None:
    beats = start_beats(replicas=2, database=django_database.on_server(own_postgres))
    until(lambda: count(broker) >= 9)
    own_postgres.pause()  # silent: nobody is told that it is away
    before = count(broker)
    until(lambda: count(broker) >= before + 9)
    own_postgres.resume()
    own_postgres.kill()
    before = count(broker)
    until(lambda: count(broker) >= before + 9)
    third = beats.start()  # knows nothing yet, and waits
    until(lambda: "django_database_trouble_began" in beats.logs[-1])
    time.sleep(2)
    assert third.poll() is None
    own_postgres.restart()
    django_database.use(django_database.on_server(own_postgres))
    every_second("made")
    until(lambda: times_published(broker, "made") >= 3, within=20)
    end_cleanly(beats)
    published = Published(broker)
    assert published.copies() == 0
    for entry in ("a", "b", "c", "made"):
        published.assert_no_gap(entry)
        assert row(entry).total_run_count == times_published(broker, entry)
    for log in beats.logs:
        assert log.count("django_database_trouble_began") == 1
        assert log.count("django_database_trouble_ended") == 1
        assert "beat_tick_failed" not in log
