"""A process dies at a named step, and what it was at is done all the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.testing.steps import KillAt

from .beats import Beats, Published, until
from .workers import Workers

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

CONFIG = """
    import os
    app = Celery("proj", broker=os.environ["BROKER"])
    app.conf.singleton_lock_url = os.environ["LOCK"]
    app.conf.singleton_slot_ttl = 1
    app.conf.beat_schedule = {"a": {"task": "proj.tick", "schedule": 1.0}}
"""
TASKS = """
    @app.task(base=SingletonTask, overlap="allow")
    def once():
        note("start")
"""


@pytest.mark.parametrize(("step", "has_copies"), [("claimed", False), ("published", True)])
def test_the_slot_of_a_beat_that_dies_at_a_step_is_published(
    tmp_path: Path, broker: RedisServer, locks: RedisServer, step: str, has_copies: bool
) -> None:
    kill_at = KillAt(tmp_path)
    beats = Beats(tmp_path, CONFIG, BROKER=broker.url, LOCK=locks.url)
    try:
        dying = beats.start(**kill_at.environment(step))
        until(lambda: dying.poll() is not None)
        assert kill_at.has_happened(step)
        beats.start()
        until(lambda: len(Published(broker).slots_of("a")) >= 3)
    finally:
        beats.end()
    published = Published(broker)
    published.assert_no_gap("a")
    # Nobody can know that it was published: it is published again, under its id.
    assert bool(published.copies()) is has_copies


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    started: list[Workers] = []
    with RedisServer() as notes:

        def start(**environment: str) -> Workers:
            workers = Workers(tmp_path, notes.url, notes, TASKS)
            started.append(workers)
            workers.start("prefork", 1, **environment)
            return workers

        yield start
        for each in started:
            each.end()


@pytest.mark.parametrize(("step", "executions"), [("begun", 1), ("executed", 2), ("finished", 1)])
def test_the_run_of_a_child_that_dies_at_a_step_is_executed(
    tmp_path: Path, workers: Callable[..., Any], step: str, executions: int
) -> None:
    kill_at = KillAt(tmp_path)
    world = workers(**kill_at.environment(step))
    run = world.call("once")
    until(lambda: kill_at.has_happened(step))
    until(lambda: world.outcome(run) == "succeeded", within=40)
    assert Counter(note.what for note in world.noted("start", run))["start"] == executions
