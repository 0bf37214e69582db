"""Rows of django-celery-beat: when they are due, what is published, and what is written back."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_singleton_lock.testing.servers import RedisServer
from tests import django_database

django_database.set_up()

from django.conf import settings  # noqa: E402
from django.utils import timezone  # noqa: E402
from django_celery_beat.models import (  # noqa: E402
    ClockedSchedule,
    CrontabSchedule,
    IntervalSchedule,
    PeriodicTask,
    PeriodicTasks,
    SolarSchedule,
)

from celery_singleton_lock.beat.django import SingletonDatabaseScheduler  # noqa: E402
from celery_singleton_lock.beat.django.row import RowEntry, as_django  # noqa: E402

MADE = datetime(2026, 11, 18, 12, 0, 30, tzinfo=UTC)  # a Wednesday
SECOND = timedelta(seconds=1)


# When: by the row alone


def entry_of(**fields: Any) -> RowEntry:
    row = PeriodicTask(name="e", task="t", **{"date_changed": MADE} | fields)
    return RowEntry(row, app=Celery(set_as_current=False))


def slots_of(entry: RowEntry, most: int = 3) -> list[datetime]:
    slots: list[datetime] = []
    after = entry.begins
    while len(slots) < most and (slot := entry.grid.next(after)) is not None:
        slots.append(slot)
        after = slot
    return slots


def weekly() -> IntervalSchedule:
    return IntervalSchedule(every=7, period="days")


def test_interval_is_counted_from_the_start_time() -> None:
    start = datetime(2026, 11, 23, 6, 0, tzinfo=UTC)  # a Monday; weeks of the epoch begin on Thursday
    entry = entry_of(interval=weekly(), start_time=start)
    assert slots_of(entry, 2) == [start, start + timedelta(days=7)]


def test_start_time_in_the_past_does_not_invent_a_past() -> None:
    start = datetime(2026, 11, 2, 6, 0, tzinfo=UTC)
    entry = entry_of(interval=weekly(), start_time=start)
    assert slots_of(entry, 1) == [datetime(2026, 11, 23, 6, 0, tzinfo=UTC)]


def test_crontab_has_a_time_zone_of_its_own_and_keeps_to_its_clock() -> None:
    nightly = CrontabSchedule(minute="30", hour="2", timezone=ZoneInfo("Europe/Berlin"))
    put_back = entry_of(crontab=nightly, date_changed=datetime(2026, 10, 24, 12, tzinfo=UTC))
    assert slots_of(put_back, 2) == [
        datetime(2026, 10, 25, 0, 30, tzinfo=UTC),  # 02:30 exists twice there on that day
        datetime(2026, 10, 26, 1, 30, tzinfo=UTC),
    ]
    put_forward = entry_of(crontab=nightly, date_changed=datetime(2026, 3, 27, 12, tzinfo=UTC))
    assert slots_of(put_forward) == [
        datetime(2026, 3, 28, 1, 30, tzinfo=UTC),
        datetime(2026, 3, 29, 1, 30, tzinfo=UTC),  # 02:30 does not exist there on that day
        datetime(2026, 3, 30, 0, 30, tzinfo=UTC),
    ]


def test_crontab_of_every_hour_goes_on_every_hour_where_the_clocks_are_put_back() -> None:
    hourly = CrontabSchedule(minute="30", timezone=ZoneInfo("Europe/Berlin"))
    entry = entry_of(crontab=hourly, date_changed=datetime(2026, 10, 25, 0, 0, tzinfo=UTC))
    assert [slot.hour for slot in slots_of(entry)] == [0, 1, 2]


def test_crontab_begins_with_the_start_time() -> None:
    start = datetime(2026, 11, 20, 0, 0, tzinfo=UTC)
    entry = entry_of(crontab=CrontabSchedule(minute="0", hour="6"), start_time=start)
    assert slots_of(entry, 1) == [datetime(2026, 11, 20, 6, 0, tzinfo=UTC)]


def test_solar_has_slots() -> None:
    entry = entry_of(solar=SolarSchedule(event="sunrise", latitude=52, longitude=13))
    assert [slot.date().isoformat() for slot in slots_of(entry, 2)] == ["2026-11-19", "2026-11-20"]


def test_no_slot_is_at_or_after_the_time_it_expires() -> None:
    minutely = IntervalSchedule(every=1, period="minutes")
    entry = entry_of(interval=minutely, expires=MADE + timedelta(seconds=90))
    assert slots_of(entry) == [MADE + timedelta(seconds=30)]


def test_one_off_has_one_slot_the_first_after_the_row_was_changed() -> None:
    minutely = IntervalSchedule(every=1, period="minutes")
    assert slots_of(entry_of(interval=minutely, one_off=True)) == [MADE + timedelta(seconds=30)]


def test_clocked_time_that_was_over_when_the_row_was_changed_is_due_at_once() -> None:
    future, past = MADE + timedelta(days=40), MADE - timedelta(days=40)
    assert slots_of(entry_of(clocked=ClockedSchedule(clocked_time=future), one_off=True)) == [future]
    assert slots_of(entry_of(clocked=ClockedSchedule(clocked_time=past), one_off=True)) == [MADE]


def test_what_ran_already_does_not_run_again_on_a_store_that_knows_nothing() -> None:
    minutely = IntervalSchedule(every=1, period="minutes")
    ran = MADE + timedelta(seconds=30)
    assert slots_of(entry_of(interval=minutely, last_run_at=ran), 1) == [ran + timedelta(minutes=1)]
    assert slots_of(entry_of(interval=minutely, last_run_at=ran, one_off=True)) == []


def test_times_without_a_zone_are_in_the_zone_of_django(monkeypatch: pytest.MonkeyPatch) -> None:
    def local(hour: int) -> datetime:
        return datetime(2026, 11, 18, hour)  # noqa: DTZ001 - that is the case

    monkeypatch.setattr(settings, "USE_TZ", False)
    monkeypatch.setattr(timezone, "get_current_timezone", lambda: ZoneInfo("Asia/Tokyo"))
    clocked = ClockedSchedule(clocked_time=local(20))
    entry = entry_of(clocked=clocked, one_off=True, date_changed=local(10))
    assert slots_of(entry) == [datetime(2026, 11, 18, 11, tzinfo=UTC)]
    assert as_django(datetime(2026, 11, 18, 11, tzinfo=UTC)) == local(20)


# The scheduler, ticked by hand


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def until(fact: Callable[[], Any], wait: Callable[[], float] = lambda: 0.05) -> None:
    give_up_at = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(wait())


class Beat:
    """A scheduler in this process."""

    def __init__(self, broker: RedisServer, place: Path, **settings: Any) -> None:
        self.app = Celery("proj", broker=broker.url, set_as_current=False)
        self.app.conf.singleton_lock_url = f"sqlite:///{place / 'leases.db'}"
        self.app.conf.result_expires = None
        self.app.conf.update(settings)
        self.scheduler = SingletonDatabaseScheduler(self.app)
        self._broker = broker

    def tick_until(self, fact: Callable[[], Any]) -> None:
        until(fact, lambda: min(self.scheduler.tick(), 0.05))

    def messages(self, queue: str = "celery") -> list[dict[str, Any]]:
        client: Any = self._broker.connect()
        keys = [key for key in client.keys("*") if key.split("\x06")[0] == queue]
        return [json.loads(text) for key in keys for text in reversed(client.lrange(key, 0, -1))]

    def slots(self, entry: str) -> list[datetime]:
        every = [message["headers"] for message in self.messages()]
        slots = [each["singleton_slot"] for each in every if each["singleton_entry"] == entry]
        return [datetime.fromisoformat(slot) for slot in slots]


StartBeat = Callable[..., Beat]


@pytest.fixture
def start_beat(tmp_path: Path, broker: RedisServer) -> Iterator[StartBeat]:
    django_database.use(django_database.in_file(tmp_path / "django.db"))
    started: list[Beat] = []

    def start(**settings: Any) -> Beat:
        started.append(Beat(broker, tmp_path, **settings))
        return started[-1]

    yield start
    for beat in started:
        beat.scheduler.close()
    django_database.leave()


def every_second(name: str, **fields: Any) -> Any:
    second, _ = IntervalSchedule.objects.get_or_create(every=1, period="seconds")
    return PeriodicTask.objects.create(name=name, task="t", interval=second, **fields)


def row(name: str) -> Any:
    return PeriodicTask.objects.get(name=name)


def enable(beat: Beat, name: str, enabled: bool) -> None:
    """As the admin's actions do, which leave no trace of when in the row."""
    PeriodicTask.objects.filter(name=name).update(enabled=enabled)
    PeriodicTasks.update_changed()
    beat.tick_until(lambda: (name in beat.scheduler.schedule) is enabled)


def test_message_is_what_the_row_says(start_beat: StartBeat) -> None:
    every_second(
        "e",
        args='[1, "two"]',
        kwargs='{"three": 3}',
        queue="urgent",
        priority=3,
        headers='{"tenant": "x"}',
        expire_seconds=60,
    )
    beat = start_beat()
    beat.tick_until(lambda: beat.messages("urgent"))
    message = beat.messages("urgent")[0]
    headers = message["headers"]
    assert (headers["argsrepr"], headers["kwargsrepr"]) == ("[1, 'two']", "{'three': 3}")
    assert (headers["tenant"], headers["periodic_task_name"]) == ("x", "e")
    expires_in = datetime.fromisoformat(headers["expires"]) - datetime.now(UTC)
    assert timedelta(seconds=40) < expires_in <= timedelta(seconds=60)
    assert message["properties"]["priority"] == 3


def test_all_enabled_rows_are_known_however_far_away(start_beat: StartBeat) -> None:
    for hour in range(24):
        at = CrontabSchedule.objects.create(minute="0", hour=str(hour))
        PeriodicTask.objects.create(name=f"at {hour}", task="t", crontab=at)
    later = ClockedSchedule.objects.create(clocked_time=timezone.now() + timedelta(days=99))
    PeriodicTask.objects.create(name="later", task="t", clocked=later, one_off=True)
    every_second("disabled", enabled=False)
    beat = start_beat()
    beat.tick_until(lambda: len(beat.scheduler.schedule) == 25)
    assert "disabled" not in beat.scheduler.schedule


def test_row_that_cannot_be_understood_holds_up_nobody_and_is_left_as_it_is(
    start_beat: StartBeat, caplog: pytest.LogCaptureFixture
) -> None:
    every_second("not JSON", args="[1")
    nonsense = CrontabSchedule.objects.create(minute="every now and then")
    PeriodicTask.objects.create(name="no crontab", task="t", crontab=nonsense)
    every_second("good")
    beat = start_beat()
    beat.tick_until(lambda: beat.slots("good"))
    PeriodicTasks.update_changed()
    beat.tick_until(lambda: len(beat.slots("good")) > 3)
    assert not beat.slots("not JSON")
    assert PeriodicTask.objects.filter(enabled=True).count() == 3
    told = [text for text in caplog.messages if "django_row_not_understood" in text]
    assert len(told) == 2


def test_expired_row_is_disabled_after_its_last_slot(start_beat: StartBeat) -> None:
    expires = timezone.now() + 4 * SECOND
    every_second("e", expires=expires)
    beat = start_beat()
    beat.tick_until(lambda: not row("e").enabled)
    slots = beat.slots("e")
    assert timedelta(0) < expires - slots[-1] <= SECOND
    assert row("e").total_run_count == len(slots)
    assert timezone.now() >= expires


def test_one_off_that_came_due_days_ago_is_published(start_beat: StartBeat) -> None:
    then = timezone.now() - timedelta(days=2)
    clocked = ClockedSchedule.objects.create(clocked_time=then)
    PeriodicTask.objects.create(name="e", task="t", clocked=clocked, one_off=True)
    PeriodicTask.objects.update(date_changed=then - SECOND)  # no beat ran since
    beat = start_beat()
    beat.tick_until(lambda: not row("e").enabled)
    assert beat.slots("e") == [then]


def test_one_off_of_a_replica_that_died_before_it_wrote_so_is_disabled_by_another(
    start_beat: StartBeat,
) -> None:
    every_second("e", one_off=True)
    dead = start_beat()
    dead.scheduler._clerk._write = lambda: None  # type: ignore[method-assign]
    dead.tick_until(lambda: dead.slots("e"))
    assert row("e").enabled
    beat = start_beat()
    beat.tick_until(lambda: not row("e").enabled)
    assert len(beat.slots("e")) == 1


def test_one_off_that_was_given_a_new_time_meanwhile_is_not_disabled(start_beat: StartBeat) -> None:
    every_second("e", one_off=True)
    beat = start_beat()
    beat.tick_until(lambda: "e" in beat.scheduler.schedule)
    stale = beat.scheduler.schedule["e"]
    later = row("e")
    later.start_time = timezone.now() + timedelta(hours=1)
    later.save()
    beat.scheduler._clerk.note_end(stale)
    beat.tick_until(lambda: beat.scheduler.schedule["e"] is not stale)
    beat.scheduler.close()
    assert row("e").enabled


def test_other_arguments_leave_out_no_slot_that_is_still_to_be_published(start_beat: StartBeat) -> None:
    every_second("e")
    beat = start_beat()
    beat.tick_until(lambda: beat.slots("e"))
    known = beat.scheduler.schedule
    time.sleep(2)  # two slots come due, and nobody ticks
    changed = row("e")
    changed.args = "[2]"
    changed.save()
    until(lambda: beat.scheduler.schedule is not known)
    beat.tick_until(lambda: len(beat.slots("e")) >= 5)
    assert {b - a for a, b in pairwise(beat.slots("e"))} == {SECOND}


def test_resumed_row_begins_then_also_for_a_replica_that_starts_later(start_beat: StartBeat) -> None:
    interval = IntervalSchedule.objects.create(every=3, period="seconds")
    PeriodicTask.objects.create(name="e", task="t", interval=interval)
    every_second("clock")
    beat = start_beat(singleton_catch_up="all")
    beat.tick_until(lambda: beat.slots("e"))
    enable(beat, "e", False)
    ticks = len(beat.slots("clock"))
    beat.tick_until(lambda: len(beat.slots("clock")) >= ticks + 7)
    enable(beat, "e", True)
    beat.scheduler.tick()  # reads its position, and tells the store
    resumed_at = timezone.now()
    beat.scheduler.close()
    published = len(beat.slots("e"))
    another = start_beat(singleton_catch_up="all")
    another.tick_until(lambda: len(another.slots("e")) > published)
    assert another.slots("e")[published] > resumed_at - 3 * SECOND


def test_lines_of_beat_schedule_are_rows_that_a_restart_does_not_change(
    start_beat: StartBeat,
) -> None:
    line = {"task": "t", "schedule": crontab(minute="*/5"), "args": (1,), "options": {"queue": "q"}}
    schedule = {"line": line, "each second": {"task": "t", "schedule": 1.0}}
    beat = start_beat(beat_schedule=schedule, result_expires=3600)
    beat.tick_until(lambda: len(beat.scheduler.schedule) == 3)
    made, change = row("line").date_changed, PeriodicTasks.last_change()
    again = start_beat(beat_schedule=schedule, result_expires=3600)
    again.tick_until(lambda: len(again.scheduler.schedule) == 3)
    assert row("line").date_changed == made
    assert PeriodicTasks.last_change() == change
    other = {"line": {**line, "args": (2,)}}
    beat = start_beat(beat_schedule=other, result_expires=3600)
    beat.tick_until(lambda: row("line").args == "[2]")


def test_lazy_scheduler_does_no_io() -> None:
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
    scheduler = SingletonDatabaseScheduler(app, lazy=True)
    assert "redis://127.0.0.1:1/0" in scheduler.info
    assert scheduler.schedule == {}
    scheduler.close()
    scheduler.close()
