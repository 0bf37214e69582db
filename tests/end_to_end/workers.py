"""Real `celery worker` processes, and what their tasks wrote down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from celery_singleton_lock import Record, open_store
from celery_singleton_lock.testing.servers import RedisServer
from tests.support import let_it_tell

HEAD = """
import json, os, sys, time
from celery import Celery
import redis
from celery_singleton_lock import LeaseLost, SingletonTask, current_run
notes = redis.Redis.from_url(os.environ["NOTES"])
app = Celery("proj", broker=os.environ["BROKER"], backend=os.environ["NOTES"])
app.conf.update(
    singleton_lock_url=os.environ["NOTES"],
    singleton_slot_ttl=0.75,
    singleton_lock_ttl=2,
    worker_prefetch_multiplier=1,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_default_queue=os.environ["QUEUE"],
    worker_hijack_root_logger=False,
)
if os.environ["BROKER"].startswith("redis"):
    app.conf.broker_transport_options = {
        "visibility_timeout": 5, "unacked_restore_interval": 1, "unacked_restore_throttle": 1,
    }

def note(what, **more):
    run = current_run()
    facts = {"what": what, "pid": os.getpid(), "at": time.time(), **more}
    if run is not None:
        facts.update(run=run.id, fence=run.fence, attempt=run.attempt)
    notes.rpush("notes", json.dumps(facts))

def wait_for(flag, seconds=120):
    until = time.monotonic() + seconds
    while time.monotonic() < until and not notes.exists(flag):
        time.sleep(0.02)
"""


class Note(NamedTuple):
    what: str
    pid: int
    at: float
    run: str
    fence: int
    attempt: int


class Workers:
    """Workers of one app, started in `place` with these tasks; ended by their pids, with their pool."""

    def __init__(self, place: Path, broker_url: str, notes: RedisServer, tasks: str) -> None:
        self.place = place
        self.processes: list[subprocess.Popen[bytes]] = []
        self.notes_server = notes
        self.queue = f"q{os.getpid()}-{time.time_ns()}"
        self._environment = {"BROKER": broker_url, "NOTES": notes.url, "QUEUE": self.queue}
        (place / "proj.py").write_text(HEAD + textwrap.dedent(tasks))

    def start(
        self, pool: str = "prefork", concurrency: int = 2, *more: str, **environment: str
    ) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        command = (
            f"celery -A proj worker -l INFO -P {pool} -c {concurrency} -n w{number}@%h "
            "--without-gossip --without-mingle"
        )
        with self.log_of(number).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", *command.split(), *more],
                cwd=self.place,
                env=os.environ | self._environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        until(lambda: " ready." in self.log_of(number).read_text(), within=40)
        return process

    def log_of(self, number: int) -> Path:
        return self.place / f"worker-{number}.log"

    def call(self, task: str, *args: Any, **options: Any) -> str:
        """Publish from a process of its own, which knows the tasks; return the run's id."""
        return str(self.client().tasks[f"proj.{task}"].apply_async(args, **options).id)

    def client(self) -> Any:
        """The app, in this process, for calls and results."""
        if not hasattr(self, "_client"):
            before = dict(os.environ)
            os.environ.update(self._environment)
            namespace: dict[str, Any] = {"__name__": "proj"}
            source = (self.place / "proj.py").read_text()
            # Tasks are given to all apps of a process, unless they say no.
            shown = source.replace("@app.task(", "@app.task(shared=False, ")
            assert "@app.task\n" not in shown
            exec(compile(shown, "proj.py", "exec"), namespace)
            os.environ.clear()
            os.environ.update(before)
            self._client = namespace["app"]
            self._client.finalize()
        return self._client

    def result(self, run: str) -> Any:
        return self.client().AsyncResult(run)

    @property
    def notes(self) -> list[Note]:
        client: Any = self.notes_server.connect()
        read = [json.loads(text) for text in client.lrange("notes", 0, -1)]
        return [
            Note(
                each["what"],
                each["pid"],
                each["at"],
                each.get("run", ""),
                each.get("fence", 0),
                each.get("attempt", 0),
            )
            for each in read
        ]

    def noted(self, what: str, run: str | None = None) -> list[Note]:
        return [note for note in self.notes if note.what == what and run in (None, note.run)]

    def set(self, flag: str) -> None:
        client: Any = self.notes_server.connect()
        client.set(flag, "1")

    def record(self, key: str) -> Record | None:
        store = open_store(self.notes_server.url)
        try:
            [record] = store.peek([key])
        finally:
            store.close()
        return record

    def outcome(self, run: str) -> str | None:
        record = self.record(f"run:{run}")
        return record.outcome if record else None

    def end(self) -> None:
        for process in self.processes:
            let_it_tell(process)
            try:
                # The worker leads a group of its own: the children of its pool are in it.
                os.killpg(process.pid, signal.SIGCONT)
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait(10)


class Together(Workers):
    """Replicas of beat beside the workers, of the same app."""

    def start_beat(self) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        with self.log_of(number).open("wb") as log:
            command = "celery -A proj beat -S singleton -l INFO --pidfile="
            process = subprocess.Popen(
                [sys.executable, "-m", *command.split()],
                cwd=self.place,
                env=os.environ | self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process


def until(fact: Callable[[], Any], within: float = 30.0) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.05)
