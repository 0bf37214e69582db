"""Beat and workers together: every slot is executed once, and the runs of the dead are taken over."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_singleton_lock.testing.servers import RedisServer

from .workers import Note, Together, until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TASKS = """
    # An hour, as it is by default: who takes over in time is not the broker.
    app.conf.broker_transport_options = {"visibility_timeout": 3600}
    app.conf.singleton_remember_for = 7200
    app.conf.beat_schedule = {
        "often": {"task": "proj.tick", "schedule": 1.0, "args": ("often",)},
        "slow": {"task": "proj.slow", "schedule": 3600.0, "catch_up": "none"},
    }

    @app.task(base=SingletonTask, overlap="allow")
    def tick(name):
        note("tick")

    @app.task(base=SingletonTask, unique_on=())
    def slow():
        note("start")
        wait_for("go")
        note("end")
"""
TTL_S = 2.0
NOISE_S = 4.0
"""The machine may be busy: how much later than promised a test still believes it."""


@pytest.fixture
def together(tmp_path: Path) -> Iterator[Callable[[str], Together]]:
    started: list[Together] = []
    with RedisServer() as notes:

        def start(broker_url: str) -> Together:
            started.append(Together(tmp_path, broker_url or notes.url, notes, TASKS))
            return started[-1]

        yield start
        for each in started:
            each.end()


@pytest.mark.parametrize("broker", ["redis", "rabbitmq"])
def test_run_of_a_killed_worker_is_taken_over_long_before_the_broker_would(
    request: pytest.FixtureRequest, together: Callable[[str], Together], broker: str
) -> None:
    # On RabbitMQ the broker itself delivers it again, at once: the reaper finds it running.
    url = request.getfixturevalue("rabbitmq").url if broker == "rabbitmq" else ""
    world = together(url)
    killed = world.start("prefork", 1)
    for _ in range(2):
        world.start_beat()
    run = world.call("slow")
    until(lambda: world.noted("start", run))
    world.start("prefork", 1)
    time.sleep(TTL_S)  # it is renewed
    died = time.time()
    os.killpg(killed.pid, signal.SIGKILL)
    until(lambda: len(world.noted("start", run)) == 2, within=TTL_S + 2 + NOISE_S)
    first, second = world.noted("start", run)
    assert second.at - died < TTL_S + 2 + NOISE_S
    assert second.fence > first.fence
    assert second.attempt == first.attempt
    world.set("go")
    until(lambda: world.outcome(run) == "succeeded")
    time.sleep(TTL_S + 2)
    assert len(world.noted("start", run)) == 2
    assert len(world.noted("end", run)) == 1


def test_every_slot_is_executed_once_while_beats_and_workers_are_killed(
    together: Callable[[str], Together],
) -> None:
    world = together("")
    workers = [world.start("prefork", 2) for _ in range(2)]
    beats = [world.start_beat() for _ in range(3)]
    until(lambda: len(world.noted("tick")) >= 4)
    os.killpg(beats[0].pid, signal.SIGKILL)
    time.sleep(2)
    os.killpg(workers[0].pid, signal.SIGKILL)
    world.start("prefork", 2)
    time.sleep(2)
    os.killpg(beats[1].pid, signal.SIGKILL)
    time.sleep(3 + TTL_S + 2)
    ticks: list[Note] = world.noted("tick")
    copies = Counter(note.run for note in ticks)
    # One that was killed after its effect, and before its end, is executed again: that is takeover.
    assert sum(count - 1 for count in copies.values()) <= 2
    published = sum(
        world.log_of(number).read_text().count("slot_published entry='often'")
        for number in range(len(world.processes))
    )
    assert len(copies) >= published - 2  # the last ones may be on their way
    assert len(copies) >= 10
