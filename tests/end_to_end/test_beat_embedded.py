"""Beat inside a worker, for development; and beat that answers `celery inspect ping`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock.testing.servers import RedisServer

from .beats import Beats, until

psutil = pytest.importorskip("psutil")

CONFIG = """
    import json, os
    import redis

    app = Celery("proj", broker=os.environ["BROKER"])
    app.conf.beat_schedule = {"a": {"task": "proj.tick", "schedule": 1.0}}

    @app.task(name="proj.tick", bind=True)
    def tick(self):
        told = json.dumps([self.request.id, self.request.get("singleton_slot")])
        with redis.Redis.from_url(os.environ["BROKER"]) as client:
            client.rpush("executed", told)
"""


class Workers(Beats):
    command = "worker -B --scheduler singleton -s ignored -c 1 -l INFO"


class Answering(Beats):
    command = "beat -S singleton -l INFO --pidfile= --enable-remote-control -n celerybeat@here"


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@contextmanager
def ended(beats: Beats) -> Iterator[Beats]:
    try:
        yield beats
    finally:
        beats.end()


def executed(broker: RedisServer) -> list[tuple[str, datetime]]:
    client: Any = broker.connect()
    told = [json.loads(each) for each in client.lrange("executed", 0, -1)]
    return [(run, datetime.fromisoformat(slot)) for run, slot in told]


def has_executed(broker: RedisServer, enough: int) -> bool:
    return len(executed(broker)) >= enough


def test_two_workers_with_a_beat_inside_execute_every_slot_once(
    broker: RedisServer, tmp_path: Path
) -> None:
    with ended(Workers(tmp_path, CONFIG, BROKER=broker.url)) as workers:
        for enough in (4, 8):
            workers.start()
            until(partial(has_executed, broker, enough), within=60)
        runs = executed(broker)
        families = [
            [worker, *psutil.Process(worker.pid).children(recursive=True)]
            for worker in workers.processes
        ]
        for worker in workers.processes:
            worker.send_signal(signal.SIGTERM)
        assert [worker.wait(30) for worker in workers.processes] == [0, 0]
        for _, *children in families:
            assert len(children) == 2  # the pool's, and beat
            assert psutil.wait_procs(children, timeout=10)[1] == []
    assert len({run for run, _ in runs}) == len(runs)
    slots = sorted(slot for _, slot in runs)
    assert {(b - a).total_seconds() for a, b in pairwise(slots)} == {1.0}
    assert not (tmp_path / "ignored").exists()
    assert not any("Traceback" in log for log in workers.logs)


def test_beat_answers_a_ping(broker: RedisServer, tmp_path: Path) -> None:
    with ended(Answering(tmp_path, CONFIG, BROKER=broker.url)) as beats:
        process = beats.start()
        until(lambda: "beat pidbox: Connected" in beats.logs[0])
        inspect = [
            "-m",
            "celery",
            "-b",
            broker.url,
            "inspect",
            "ping",
            "-d",
            "celerybeat@here",
            "-t",
            "10",
        ]
        answer = subprocess.run(
            [sys.executable, *inspect], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert answer.returncode == 0, answer.stderr
        assert "celerybeat@here: OK" in answer.stdout
        until(lambda: "slot_published" in beats.logs[0])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
