"""Facts about processes and threads that fight for one lease, and about forked children."""

from __future__ import annotations

import multiprocessing
import os
import random
import threading
import time
import warnings
from datetime import timedelta
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Granted, Release
from celery_singleton_lock.leases import LeaseStore

from .fixtures import LONG, OpenStore, StoreFixtures, ask, grant

RIVALS = 8
ENTRIES_EACH = 12


class RivalFacts(StoreFixtures):
    runs_in_one_process: bool = False
    """Set by a store whose records are not shared by processes: threads fight instead."""

    def test_eight_rivals_are_never_inside_together(
        self, open_again: OpenStore, key: str, tmp_path: Path
    ) -> None:
        (tmp_path / "log").touch()
        if self.runs_in_one_process:
            rivals = [
                threading.Thread(target=fight, args=(open_again, key, f"rival {n}", tmp_path))
                for n in range(RIVALS)
            ]
        else:
            context = _forkserver()
            rivals = [
                context.Process(target=fight, args=(open_again, key, f"rival {n}", tmp_path))  # type: ignore[attr-defined]
                for n in range(RIVALS)
            ]
        for rival in rivals:
            rival.start()
        for rival in rivals:
            rival.join(90)
        lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
        steps = [step for step, _ in lines]
        fences = [int(fence) for step, fence in lines if step == "in"]
        assert steps == ["in", "out"] * (RIVALS * ENTRIES_EACH)
        assert fences == sorted(set(fences))

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
    def test_forked_child_uses_the_store_and_so_does_its_parent(
        self, store: LeaseStore, key: str
    ) -> None:
        if self.runs_in_one_process:
            pytest.skip("the records of this store are not shared by processes")
        lease = grant(store, f"{key}:parent", "parent")
        with warnings.catch_warnings():
            # The test runner's own threads do not matter to the child, which only asks and exits.
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            fine = False
            try:
                held = not isinstance(ask(store, f"{key}:parent", "child"), Granted)
                mine = [ask(store, f"{key}:child:{number}", "child") for number in range(50)]
                fine = held and all(isinstance(answer, Granted) for answer in mine)
            finally:
                os._exit(0 if fine else 1)
        # Both talk at once: over one connection they would get each other's answers.
        for _ in range(50):
            assert store.renew([lease]) == [True]
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert store.renew([lease]) == [True]


def _forkserver() -> BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def fight(open_store: OpenStore, key: str, owner: str, place: Path) -> None:
    """Enter `ENTRIES_EACH` times; append "in" and "out" to a log that shows any overlap."""
    store = open_store()
    log = os.open(place / "log", os.O_WRONLY | os.O_APPEND)
    entered = 0
    while entered < ENTRIES_EACH:
        try:
            answer = ask(store, key, f"{owner}.{entered}", LONG)
            if isinstance(answer, Granted):
                os.write(log, f"in {answer.lease.fence}\n".encode())
                time.sleep(random.uniform(0, 0.004))  # nosec B311 # a pause, not a secret
                os.write(log, f"out {answer.lease.fence}\n".encode())
                while not answer.lease.is_released:
                    _try_release(store, answer)
                entered += 1
        except StoreUnavailable:
            # Eight writers may keep a small database busy for longer than a call waits.
            continue
        time.sleep(random.uniform(0, 0.01))  # nosec B311 # a pause, not a secret
    os.close(log)
    store.close()


def _try_release(store: LeaseStore, answer: Granted) -> None:
    try:
        store.release([Release(answer.lease, keep_for=timedelta(minutes=5))])
    except StoreUnavailable:
        time.sleep(0.01)
