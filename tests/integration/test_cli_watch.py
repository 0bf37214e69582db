"""`celery singleton watch`, on a real terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock import SingletonTask, open_schedule
from celery_singleton_lock.core.models import LeaseRequest
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.command_line import CommandLine, shop_on
from tests.integration.workers import Gate, define, working
from tests.support import until

PROJ = """
import os
from celery import Celery
app = Celery("shop", broker=os.environ["BROKER"])
app.conf.beat_schedule = {"tick": {"task": "shop.tick", "schedule": 10.0}}

from celery_singleton_lock import SingletonTask
for name in ("quick", "exclusive", "broken"):
    @app.task(base=SingletonTask, name=f"shop.{name}")
    def known(): ...
"""
ENTRIES = {"tick": {"task": "shop.tick", "schedule": 10.0}}


@pytest.fixture
def line(valkey: RedisServer) -> Iterator[CommandLine]:
    client: Any = valkey.connect()
    client.flushall()
    line = CommandLine(shop_on(valkey.url, beat_schedule=ENTRIES))
    note = {"task": "shop.slow", "worker": "w1@host", "run": "1"}
    line.parts.store.acquire([LeaseRequest("run:1", "me", timedelta(seconds=60), note=note)])
    line.parts.store.acquire([LeaseRequest("task:slow", "me", timedelta(seconds=60), note=note)])
    yield line
    client.flushall()
    client.close()


def test_once_prints_one_view_and_ends(line: CommandLine) -> None:
    text = line.ok("watch", "--once")
    assert "NONE ALIVE" in text
    assert "tick" in text
    assert text.count("shop.slow") == 1, "a run is told once, not also as the lock of its job"
    assert "letters 0" in text
    told = line.json("watch")
    assert list(told) == [
        "app", "store", "now", "replicas", "entries", "jobs", "locks", "dead_letters",
    ]  # fmt: skip
    assert [lock["key"] for lock in told["locks"]] == ["run:1"]


def test_without_a_terminal_it_says_what_to_do(line: CommandLine) -> None:
    result = line.run("watch")
    assert (result.exit_code, "--once" in result.stderr) == (2, True)


def test_once_with_a_store_that_is_away_is_exit_code_3() -> None:
    result = CommandLine(shop_on("redis://127.0.0.1:1/0", beat_schedule=ENTRIES)).run("watch", "--once")
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)


class OnTerminal:
    """The command on a terminal of its own, of 80 columns."""

    def __init__(self, url: str, folder: Path, interval: str = "0.2", lines: int = 24) -> None:
        (folder / "proj.py").write_text(PROJ)
        self._master, slave = pty.openpty()
        environment = os.environ | {"BROKER": url, "TERM": "xterm", "NO_COLOR": "1"}
        environment |= {"COLUMNS": "80", "LINES": str(lines)}
        command = [sys.executable, "-m", "celery", "-A", "proj", "singleton", "watch"]
        self.process = subprocess.Popen(
            [*command, "--interval", interval], stdin=slave, stdout=slave, stderr=slave, cwd=folder,
            env=environment, start_new_session=True,
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def wait_for(self, wanted: str, within: float = 40.0) -> None:
        give_up_at = time.monotonic() + within
        while wanted not in self.text:
            assert time.monotonic() < give_up_at, self.text[-3000:]
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self._master, 65536).decode(errors="replace")
                except OSError:  # the other end is closed
                    assert wanted in self.text, self.text[-3000:]

    def shown(self) -> str:
        """The last screen, with what has come since."""
        if select.select([self._master], [], [], 0.2)[0]:
            self.text += os.read(self._master, 65536).decode(errors="replace")
        return self.text.rpartition("\x1b[J")[0].rpartition("\x1b[H")[2]

    def press(self, key: str) -> None:
        os.write(self._master, key.encode())

    def end(self) -> int:
        try:
            return self.process.wait(timeout=20)
        finally:
            os.close(self._master)


@pytest.mark.parametrize("how", ["q", "Ctrl-C", "SIGTERM"])
def test_live_view_follows_and_leaves_the_terminal_as_it_was(
    line: CommandLine, valkey: RedisServer, tmp_path: Path, how: str
) -> None:
    terminal = OnTerminal(valkey.url, tmp_path)
    try:
        terminal.wait_for("shop.slow")
        if how == "q":
            open_schedule(line.app, by="anna").pause("tick")
            terminal.wait_for("tick paused by anna")
            terminal.press("q")
        elif how == "Ctrl-C":
            os.killpg(terminal.process.pid, signal.SIGINT)
        else:
            terminal.process.terminate()
        terminal.wait_for("\x1b[?1049l")
        assert "\x1b[?25h" in terminal.text, "the cursor is back"
        assert terminal.end() == (143 if how == "SIGTERM" else 0)
        assert "Traceback" not in terminal.text
        screens = re.split(r"\x1b\[H", terminal.text)
        assert all(screen.count("\r\n") < 24 for screen in screens[1:-1])
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_what_begins_and_ends_between_two_looks_is_told_by_workers(
    line: CommandLine, valkey: RedisServer, tmp_path: Path
) -> None:
    app, gate = line.app, Gate()
    app.conf.worker_send_task_events = True

    @define(app, base=SingletonTask, name="shop.quick")
    def quick(n: int) -> None: ...

    @define(app, base=SingletonTask, name="shop.exclusive", unique_on=())
    def exclusive() -> None:
        gate.enter()

    @define(app, base=SingletonTask, name="shop.broken")
    def broken() -> None:
        raise ValueError("broken for good")

    terminal = OnTerminal(valkey.url, tmp_path, interval="3", lines=60)
    try:
        with working(app), gate:
            terminal.wait_for("tick")
            # Its thread begins to hear a moment later.
            client: Any = valkey.connect()
            until(lambda: client.pubsub_numpat() or client.exists("_kombu.binding.celeryev"))
            exclusive.delay()
            assert gate.wait_for_entry()
            exclusive.delay()
            broken.delay()
            for n in range(3):
                quick.delay(n)
            terminal.wait_for("skipped: shop.exclusive")
            terminal.wait_for("dead letter: shop.broken")
            terminal.wait_for("failed: shop.broken")
            until(lambda: terminal.shown().count("succeeded: shop.quick") == 3)
        terminal.press("q")
        assert terminal.end() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()


def test_live_view_outlives_the_store(tmp_path: Path) -> None:
    server = RedisServer(persistent=True).start()
    terminal = OnTerminal(server.url, tmp_path)
    try:
        terminal.wait_for("tick")
        server.kill()
        terminal.wait_for("STORE AWAY")
        server.restart()
        terminal.text = ""
        # A view that does not begin with the news that the store is away.
        terminal.wait_for("\x1b[Hshop")
        terminal.press("q")
        terminal.wait_for("\x1b[?1049l")
        assert terminal.end() == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        server.stop()
