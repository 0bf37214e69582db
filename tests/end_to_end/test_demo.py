"""The demo is the first thing a newcomer runs: it works, explains itself, and leaves nothing."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_singleton_lock.testing.servers.waiting import holds_within
from example_project.demo.records import Work
from example_project.demo.stage import Publication
from example_project.demo.tale import Tale, faults

psutil = pytest.importorskip("psutil")

ROOT = Path(__file__).parents[2]
ENOUGH_S = 110

pytestmark = pytest.mark.usefixtures("valkey")  # skips, or fails in CI, where there is none


@contextmanager
def started_demo(directory: Path, root: Path = ROOT) -> Iterator[subprocess.Popen[str]]:
    """The demo of `root` in a process group of its own, with all its files in `directory`."""
    with subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        cwd=root,
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
            Path(process.environ().get("TMPDIR", "/")).is_relative_to(directory)
            or directory in Path(process.cwd()).parents
        )
    except psutil.Error:  # it has ended, or is not ours to look at
        return False


def assert_nothing_runs(directory: Path) -> None:
    assert holds_within(10, lambda: not left_behind(directory)), left_behind(directory)


def assert_nothing_is_left(directory: Path) -> None:
    assert_nothing_runs(directory)
    assert list(directory.iterdir()) == []


def test_demo_keeps_its_promises_while_it_hurts_beats_workers_and_redis(tmp_path: Path) -> None:
    with started_demo(tmp_path) as demo:
        said, _ = demo.communicate(timeout=ENOUGH_S)
    assert demo.returncode == 0, said
    slots = re.findall(r":(\d\d) (b\d)\S(w\d)", said.split("1. Both beats")[1])
    [killed_beat, killed_worker] = re.findall(r"kill -9 ([bw]\d)$", said, re.MULTILINE)
    [stopped] = re.findall(r"kill -STOP (w\d)$", said, re.MULTILINE)
    after_its_death = said.split(f"kill -9 {killed_beat}\n")[1]
    assert f"{killed_beat}→" not in after_its_death
    assert killed_beat in {beat for _, beat, _ in slots}
    exports = re.findall(r"(w\d) (.+) (monday|tuesday), fence (\d+)$", said, re.MULTILINE)
    for day, first in (("monday", killed_worker), ("tuesday", stopped)):
        (one, two) = [each for each in exports if each[1:3] == ("begins to export", day)]
        assert one[0] == first != two[0]
        assert int(one[3]) < int(two[3])
        assert [each for each in exports if each[1:3] == ("has exported", day)] == [
            (two[0], "has exported", day, two[3])
        ]
    assert exports[-1][:2] == (stopped, "is refused with its late export of")
    assert "all 6 processes live on" in said
    assert "a dead letter: shop.notify_partner, ConnectionError: the partner does not answer" in said
    assert re.search(r"runs +(\d+) executed, duplicates 0, missed 0$", said, re.MULTILINE)
    assert f"{len(slots)} executed" in said
    assert "1 sent in 4 attempts, 1 dead letter, 0 left" in said
    assert said.rstrip().endswith("All as promised.")
    assert "20 placed, 20 e-mails sent" in said
    assert len(said.splitlines()) <= 70
    assert "\033" not in said
    assert_nothing_is_left(tmp_path)


def test_demo_of_a_shop_that_breaks_its_promises_says_so_and_fails(tmp_path: Path) -> None:
    files, root = tmp_path / "files", tmp_path / "root"
    files.mkdir()
    shutil.copytree(ROOT / "example_project", root / "example_project")
    tasks = root / "example_project" / "tasks.py"
    text = tasks.read_text()
    counts = "session.add(Tally(slot=run.slot.isoformat(), worker=_worker(self), orders=orders))\n"
    assert counts in text
    assert ", Export.fence < fence)" in text
    tasks.write_text(
        text.replace(counts, counts + 8 * " " + counts).replace(", Export.fence < fence)", ")")
    )
    with started_demo(files, root) as demo:
        said, _ = demo.communicate(timeout=ENOUGH_S)
    assert demo.returncode == 1, said
    assert "WRONG: executed more than once" in said
    assert "WRONG: the late write replaced its successor's" in said
    assert "All as promised" not in said
    assert_nothing_is_left(files)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_demo_that_is_ended_ends_all_it_started(tmp_path: Path, number: signal.Signals) -> None:
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ends the children of a process that was killed")
    with started_demo(tmp_path) as demo:
        assert demo.stdout is not None
        # The worst moment: a process that is stopped ends by SIGKILL only.
        while "kill -STOP" not in (line := demo.stdout.readline()):
            assert line, "the demo ended early"
        os.killpg(demo.pid, number)  # as Ctrl-C in a terminal: to all of its group at once
        said, _ = demo.communicate(timeout=ENOUGH_S)
    if number == signal.SIGKILL:
        assert_nothing_runs(tmp_path)
        return
    assert demo.returncode == 130, said
    assert "Traceback" not in said
    assert_nothing_is_left(tmp_path)


NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
SLOTS = [NOON + timedelta(seconds=n) for n in range(5)]
GOOD = Tale(
    published=[Publication(slot, "b1") for slot in SLOTS],
    executed=SLOTS,
    calm_until=SLOTS[2],
    work=[
        Work(SLOTS[0], "w1", "begins to export", "monday", "m", 1, 10),
        Work(SLOTS[0], "w2", "begins to export", "monday", "m", 1, 20),
        Work(SLOTS[0], "w2", "has exported", "monday", "m", 1, 20),
        Work(SLOTS[0], "w2", "begins to export", "tuesday", "t", 1, 30),
        Work(SLOTS[0], "w3", "begins to export", "tuesday", "t", 1, 40),
        Work(SLOTS[0], "w3", "has exported", "tuesday", "t", 1, 40),
        Work(SLOTS[0], "w2", "is refused with its late export of", "tuesday", "t", 1, 30),
        Work(SLOTS[0], "w1", "has sent", "invoice 7", "i", 1, 50),
    ],
    stopped="w2",
    fence_written=40,
    letters=1,
    orders=20,
    emails=20,
)


def without(index: int) -> list[Work]:
    return GOOD.work[:index] + GOOD.work[index + 1 :]


@pytest.mark.parametrize(
    ("tale", "fault"),
    [
        (replace(GOOD, executed=SLOTS[:2] + SLOTS[3:]), "missed: 12:00:02"),
        (replace(GOOD, executed=SLOTS[1:]), "missed: 12:00:00"),
        (
            replace(GOOD, executed=SLOTS[::2], published=GOOD.published[::2]),
            "missed: 12:00:01, 12:00:03",
        ),
        (replace(GOOD, executed=[*SLOTS, SLOTS[1]]), "executed more than once: 1"),
        (replace(GOOD, published=[*GOOD.published, Publication(SLOTS[2], "b2")]), "nobody was hurt"),
        (replace(GOOD, work=[GOOD.work[1], GOOD.work[0], *GOOD.work[2:]]), "fences of monday"),
        (replace(GOOD, work=without(2)), "monday was not exported once"),
        (replace(GOOD, work=[*GOOD.work, GOOD.work[5]]), "tuesday was not exported once"),
        (replace(GOOD, work=without(6)), "it was not w2 who was refused"),
        (replace(GOOD, fence_written=30), "the late write replaced"),
        (replace(GOOD, work=without(7)), "not replayed once"),
        (replace(GOOD, letters_left=1), "not replayed once"),
        (replace(GOOD, emails=19), "20 orders were placed, and 19 e-mails sent"),
    ],
)  # fmt: skip
def test_broken_promise_is_a_fault_of_the_demo(tale: Tale, fault: str) -> None:
    assert any(fault in each for each in faults(tale))


def test_a_copy_while_somebody_was_hurt_is_no_fault() -> None:
    assert list(faults(GOOD)) == []
    assert list(faults(replace(GOOD, published=[*GOOD.published, Publication(SLOTS[4], "b2")]))) == []
