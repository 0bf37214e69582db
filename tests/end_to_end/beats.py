"""Real `celery beat` processes, and what they published."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from celery_singleton_lock.testing.servers import RedisServer
from tests.support import let_it_tell
from tests.support import until as until

QUEUE = "celery"
CONFIG = """
    import os
    app = Celery("proj", broker=os.environ["BROKER"])
    app.conf.singleton_lock_url = os.environ["LOCK"]
    app.conf.singleton_slot_ttl = 1.5
    app.conf.beat_schedule = {
        name: {"task": "proj.tick", "schedule": 1.0, "args": (name,)} for name in "abc"
    }
"""


class Beats:
    """Replicas of one app, started in `place` with this configuration; ended by their pids."""

    command = "beat -S singleton -l INFO --pidfile="

    def __init__(self, place: Path, config: str, **environment: str) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []
        self._environment = environment
        (place / "proj.py").write_text("from celery import Celery\n" + textwrap.dedent(config))

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        command = f"celery -A proj {self.command}"
        with self.log_of(len(self.processes)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command.split()],
                cwd=self.place,
                env=os.environ | self._environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.processes.append(process)
        return process

    def log_of(self, number: int) -> Path:
        return self.place / f"beat-{number}.log"

    @property
    def logs(self) -> list[str]:
        return [self.log_of(number).read_text() for number in range(len(self.processes))]

    def exit_codes(self) -> list[int | None]:
        return [process.poll() for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            let_it_tell(process)
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait(10)


@dataclass(frozen=True)
class Run:
    id: str
    entry: str
    slot: datetime


class Published:
    """What lies in the queue of a Redis broker, oldest first."""

    def __init__(self, broker: RedisServer) -> None:
        client: Any = broker.connect()
        messages = [json.loads(text) for text in reversed(client.lrange(QUEUE, 0, -1))]
        self.runs = [as_run(message["headers"]) for message in messages]

    def slots_of(self, entry: str) -> list[datetime]:
        return sorted({run.slot for run in self.runs if run.entry == entry})

    def copies(self) -> int:
        """How many messages are one too many."""
        return sum(count - 1 for count in Counter(run.id for run in self.runs).values())

    def assert_no_gap(self, entry: str, seconds: float = 1.0) -> None:
        slots = self.slots_of(entry)
        assert len(slots) > 1, f"{entry}: only {slots}"
        gaps = [(b - a).total_seconds() for a, b in pairwise(slots)]
        assert set(gaps) == {seconds}, (entry, slots)


def as_run(headers: dict[str, Any]) -> Run:
    slot = datetime.fromisoformat(headers["singleton_slot"])
    return Run(headers["id"], headers["singleton_entry"], slot)


def count(broker: RedisServer) -> int:
    client: Any = broker.connect()
    return int(client.llen(QUEUE))


StartBeats = Callable[..., Beats]
"""Called with the URLs of the broker and the locks; then how many `replicas`, and their `config`."""
