"""A server, an app in a folder, and processes of it that can be hurt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery_singleton_lock.testing.servers import RedisServer

from .subjects import Subject

APP = """
import os, time
from celery import Celery

URL = {url!r}
PLACE = {place!r}
EXPIRY = {expiry!r}
app = Celery("proj", broker=URL, backend=URL, set_as_current=False)
app.conf.broker_connection_retry_on_startup = True
app.conf.broker_transport_options = {{"visibility_timeout": 3600}}
app.conf.beat_schedule = {{
    f"entry {{n}}": {{"task": "tick", "schedule": 1.0, "args": (n,)}} for n in range({entries})
}}
{config}


def note(what):
    with open({journal!r}, "a") as journal:
        journal.write(f"{{what}} {{os.getpid()}} {{time.time()}}\\n")


{task}
def job(seconds):
    note("begin")
    time.sleep(seconds)
    note("end")
"""


class Theatre:
    """None of its processes outlives it."""

    def __init__(self, server: RedisServer, subject: Subject, place: Path) -> None:
        self.server = server
        self._subject = subject
        self._place = place
        self.processes: list[subprocess.Popen[bytes]] = []

    def write_app(self, *, entries: int = 0, expiry: int | None = None) -> None:
        text = APP.format(
            url=self.server.url,
            place=str(self._place),
            expiry=expiry,
            entries=entries,
            config=self._subject.config,
            task=self._subject.task,
            journal=str(self._journal),
        )
        (self._place / "proj.py").write_text(text)
        self._journal.touch()
        if self._subject.prepare:
            self._run(self._subject.prepare)

    def start_beat(self) -> subprocess.Popen[bytes]:
        number = len(self.processes)
        options = [each.format(place=self._place, number=number) for each in self._subject.options]
        return self._start("beat", "--pidfile=", *options)

    def start_worker(self, *options: str) -> subprocess.Popen[bytes]:
        return self._start("worker", "--without-gossip", "--without-mingle", "-c", "4", *options)

    def call(self, seconds: float) -> None:
        """In a process of its own, as a web server would."""
        self._run(f"proj.job.delay({seconds})")

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """With its children."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    @property
    def living(self) -> int:
        return sum(process.poll() is None for process in self.processes)

    @property
    def journal(self) -> list[tuple[str, float]]:
        rows = [line.split() for line in self._journal.read_text().splitlines()]
        return [(what, float(at)) for what, _, at in rows]

    @property
    def _journal(self) -> Path:
        return self._place / "journal"

    def _run(self, program: str) -> None:
        command = [sys.executable, "-c", f"import proj\n{program}"]
        # Some refuse a call by an exception: that is an outcome, too.
        subprocess.run(command, cwd=self._place, timeout=60, check=False, stderr=subprocess.DEVNULL)

    def _start(self, *words: str) -> subprocess.Popen[bytes]:
        log = (self._place / f"{len(self.processes)}.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "proj", *words, "-l", "INFO"],
            cwd=self._place,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        self.processes.append(process)
        return process


@contextmanager
def theatre(subject: Subject) -> Iterator[Theatre]:
    server = RedisServer(persistent=True)
    with tempfile.TemporaryDirectory() as place, server:
        stage = Theatre(server, subject, Path(place))
        try:
            yield stage
        finally:
            for process in stage.processes:
                if process.poll() is None:
                    stage.kill(process)


class Messages:
    """Takes the messages of beats from the queue, with the time at which each came."""

    def __init__(self, server: RedisServer) -> None:
        self._client: Any = server.connect()
        self.times: list[float] = []

    def listen(self, seconds: float, *, until: Callable[[], bool] = lambda: False) -> None:
        give_up_at = time.time() + seconds
        while time.time() < give_up_at and not until():
            try:
                if self._client.lpop("celery") is not None:
                    self.times.append(time.time())
                    continue
            except OSError:
                pass
            time.sleep(0.005)


def wait_for(fact: Callable[[], bool], seconds: float) -> bool:
    give_up_at = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.05)
    return True
