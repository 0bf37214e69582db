"""The mixin over a scheduler class of a user's own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.beat import ScheduleEntry, Scheduler

from celery_singleton_lock.beat.entries import Due
from celery_singleton_lock.beat.scheduler import SingletonSchedulerMixin
from celery_singleton_lock.core.facts import Fact, SlotsPublished
from celery_singleton_lock.observability.listening import listeners_of
from celery_singleton_lock.testing.servers import RedisServer


class Theirs(Scheduler):  # type: ignore[misc]
    """Keeps its entries somewhere, which may be away."""

    lines: Mapping[str, Any] = {"a": {"task": "t", "schedule": 1.0}}
    is_away = False

    def setup_schedule(self) -> None:
        self.read()

    def read(self) -> None:
        entries = {
            name: ScheduleEntry(name=name, app=self.app, **line) for name, line in self.lines.items()
        }
        self.data = entries

    @property
    def schedule(self) -> Any:
        if self.is_away:
            raise ConnectionError("the wiki is away")
        return self.data


class Ours(SingletonSchedulerMixin, Theirs):
    def after_publish(self, due: Due) -> None:
        raise ValueError("a bug in the books")


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def scheduler(broker: RedisServer, tmp_path: Path) -> Iterator[Ours]:
    app = Celery("proj", broker=broker.url, set_as_current=False)
    scheduler = Ours(app)
    yield scheduler
    scheduler.close()


def tick_until(scheduler: Ours, fact: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + 20
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(min(scheduler.tick(), 0.05))


def published(broker: RedisServer) -> list[str]:
    client: Any = broker.connect()
    return list(client.lrange("celery", 0, -1))


def test_error_in_the_books_of_the_other_class_does_not_publish_twice(
    broker: RedisServer, scheduler: Ours, caplog: pytest.LogCaptureFixture
) -> None:
    tick_until(scheduler, lambda: len(published(broker)) >= 3)
    slots = [text.split('"singleton_slot": "')[1].split('"')[0] for text in published(broker)]
    assert len(set(slots)) == len(slots)
    assert caplog.text.count("beat_books_not_kept") == len(slots)


def test_listeners_are_told_of_every_slot_by_the_id_of_its_message(
    broker: RedisServer, scheduler: Ours
) -> None:
    told: list[Fact] = []
    listeners_of(scheduler.app).add(told.append)
    tick_until(scheduler, lambda: len(published(broker)) >= 2)
    runs = [run for fact in told if isinstance(fact, SlotsPublished) for run in fact.runs]
    assert {run.entry for run in runs} == {"a"}
    assert {run.task for run in runs} == {"t"}
    ids = [json.loads(text)["headers"]["id"] for text in published(broker)]
    assert [run.id for run in reversed(runs)] == ids


def test_what_is_known_is_published_while_the_schedule_cannot_be_read(
    broker: RedisServer, scheduler: Ours, caplog: pytest.LogCaptureFixture
) -> None:
    tick_until(scheduler, lambda: published(broker))
    scheduler.is_away = True
    known = len(published(broker))
    tick_until(scheduler, lambda: len(published(broker)) >= known + 2)
    assert caplog.text.count("beat_schedule_not_read") == 1
    scheduler.is_away = False
    scheduler.lines = {"b": {"task": "t", "schedule": 1.0}}
    scheduler.read()
    tick_until(scheduler, lambda: '"singleton_entry": "b"' in published(broker)[0])


def test_signal_in_the_middle_of_a_tick_ends_beat(
    scheduler: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.tick()
    engine = scheduler._engine
    assert engine is not None
    left: list[bool] = []

    def interrupted() -> float:
        # As Celery's handler of SIGTERM does.
        scheduler.close()
        raise SystemExit

    monkeypatch.setattr(engine, "tick", interrupted)
    monkeypatch.setattr(engine, "leave", lambda: left.append(True))
    with pytest.raises(SystemExit):
        scheduler.tick()
    assert left == []  # its connections were in use
    scheduler.close()
    assert left == [True]


def test_beat_ends_although_the_handlers_exception_was_dropped(
    scheduler: Ours, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler.tick()
    engine = scheduler._engine
    assert engine is not None

    def interrupted() -> float:
        scheduler.close()  # and SystemExit was raised inside a destructor
        return 0.0

    monkeypatch.setattr(engine, "tick", interrupted)
    scheduler.tick()
    with pytest.raises(SystemExit):
        scheduler.tick()


def test_error_in_closing_does_not_keep_beat_from_ending(
    scheduler: Ours, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler.tick()

    def fail() -> None:
        raise AttributeError("kombu")

    monkeypatch.setattr(scheduler._engine, "leave", fail)
    scheduler.close()
    assert "beat_not_closed" in caplog.text
    with pytest.raises(SystemExit):
        scheduler.tick()
