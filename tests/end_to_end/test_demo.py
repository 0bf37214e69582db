"""The demo is the first thing a newcomer runs: it works, explains itself, and leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock.testing.servers.waiting import holds_within

psutil = pytest.importorskip("psutil")

ROOT = Path(__file__).parents[2]
ENOUGH_S = 60

pytestmark = pytest.mark.usefixtures("valkey")  # skips, or fails in CI, where there is none


@contextmanager
def started_demo(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """The demo in a process group of its own, with all its files in `directory`."""
    with subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(directory)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A job in the background of a shell ignores SIGINT, and so would all its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as demo:
        try:
            yield demo
        finally:
            demo.kill()


def left_behind(directory: Path) -> list[str]:
    """What still runs of a demo: its processes know the directory, and the server works in it."""
    return [
        f"{process.pid} {process.name()}"
        for process in psutil.process_iter()
        if _belongs_to(process, directory)
    ]


def _belongs_to(process: Any, directory: Path) -> bool:
    try:
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        return (
            process.environ().get("TMPDIR") == str(directory)
            or directory in Path(process.cwd()).parents
        )
    except psutil.Error:  # it has ended, or is not ours to look at
        return False


def assert_nothing_is_left(directory: Path) -> None:
    # multiprocessing's own tracker ends a moment after the demo.
    assert holds_within(5, lambda: not left_behind(directory)), left_behind(directory)
    assert list(directory.iterdir()) == []


def test_demo_shows_a_handover_two_takeovers_and_a_refused_release(tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        said, _ = demo.communicate(timeout=ENOUGH_S)
    assert demo.returncode == 0, said
    facts = re.findall(r"^ +\d+\.\d\d s  (\w+) +(.+)$", said, re.MULTILINE)
    holders = [(who, int(what.split()[-1])) for who, what in facts if what.startswith("HOLDS")]
    names, fences = zip(*holders, strict=True)
    assert sorted(names) == ["ada", "bob", "cleo", "dan"]
    assert list(fences) == sorted(set(fences))
    _, killed, stopped, last = names
    assert ("demo", f"sends SIGKILL to {killed}") in facts
    assert ("demo", f"sends SIGSTOP to {stopped}") in facts
    news_of_stopped = [what for who, what in facts if who == stopped]
    assert news_of_stopped[-2].startswith("is told LeaseLost")
    assert news_of_stopped[-1].endswith("is refused")
    assert ("server", f"says that {last} holds the lease, as before") in facts
    assert said.rstrip().endswith("All as promised.")
    assert "\033" not in said
    assert_nothing_is_left(tmp_path)


def test_interrupted_demo_ends_all_it_started(tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        assert demo.stdout is not None
        # The worst moment: a process that is stopped ends by SIGKILL only.
        while "sends SIGSTOP" not in (line := demo.stdout.readline()):
            assert line, "the demo ended early"
        os.killpg(demo.pid, signal.SIGINT)  # as Ctrl-C in a terminal: to all at once
        said, _ = demo.communicate(timeout=ENOUGH_S)
    assert demo.returncode == 130, said
    assert "Traceback" not in said
    assert_nothing_is_left(tmp_path)
