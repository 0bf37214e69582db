"""Effects happen exactly once: workers are stopped, woken too late, killed right after the commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from celery_singleton_lock.ledger import open_ledger
from celery_singleton_lock.testing.servers import RedisServer

from .workers import Workers, until

TASKS = """
import sqlalchemy as sa
from sqlalchemy.orm import Session
app.conf.singleton_database_url = "sqlite:////{place}/shop.db"
engine = sa.create_engine("sqlite:////{place}/shop.db")
bills = sa.Table("bills", sa.MetaData(), sa.Column("pid", sa.Integer))

@app.task(base=SingletonTask, bind=True)
def bill(self, how):
    note("in")
    is_first = notes.incr("tries") == 1
    with Session(engine) as session, self.current_run.transaction(session, result="billed"):
        if how == "sleep" and is_first:
            note("asleep")
            wait_for("awake")
        session.execute(bills.insert(), {{"pid": os.getpid()}})
    note("committed")
    if how == "die" and is_first:
        wait_for("never")
    return "billed"
"""


@pytest.fixture
def workers(tmp_path: Path, broker: RedisServer) -> Iterator[Workers]:
    ledger = open_ledger(f"sqlite:///{tmp_path}/shop.db")
    ledger.schema.upgrade()
    ledger.write(lambda c: c.execute(sa.text("CREATE TABLE bills (pid INTEGER)")))
    ledger.close()
    workers = Workers(tmp_path, broker.url, broker, TASKS.format(place=str(tmp_path).lstrip("/")))
    yield workers
    workers.end()


def bills(workers: Workers) -> list[int]:
    ledger = open_ledger(f"sqlite:///{workers.place}/shop.db")
    found = ledger.read(lambda c: list(c.scalars(sa.text("SELECT pid FROM bills"))))
    ledger.close()
    return found


def test_a_worker_that_wakes_up_late_commits_nothing(workers: Workers) -> None:
    stopped = workers.start("prefork", 1)
    run = workers.call("bill", "sleep")
    until(lambda: workers.noted("asleep"))
    os.killpg(stopped.pid, signal.SIGSTOP)
    workers.start("prefork", 1)
    until(lambda: workers.outcome(run) == "succeeded", within=60)
    os.killpg(stopped.pid, signal.SIGCONT)
    workers.set("awake")
    # Refused, it offers the message again, and is told that the run is done.
    until(lambda: "copy_ignored" in workers.log_of(0).read_text(), within=60)
    [committed] = workers.noted("committed")
    assert bills(workers) == [committed.pid]
    assert workers.result(run).get(timeout=20) == "billed"


def test_a_worker_that_is_killed_right_after_the_commit_is_not_repeated_but_its_result_is_told(
    workers: Workers,
) -> None:
    killed = workers.start("prefork", 1)
    run = workers.call("bill", "die")
    until(lambda: workers.noted("committed"))
    os.killpg(killed.pid, signal.SIGKILL)
    workers.start("prefork", 1)
    assert workers.result(run).get(timeout=60) == "billed"
    assert len(workers.noted("in")) == 1
    assert len(bills(workers)) == 1


@pytest.mark.parametrize(
    "command", ["worker -P solo", "beat -S singleton -s schedule"], ids=["worker", "beat"]
)
def test_a_ledger_without_tables_is_refused_at_start_with_what_to_do(
    tmp_path: Path, broker: RedisServer, command: str
) -> None:
    (tmp_path / "proj.py").write_text(
        "from celery import Celery\n"
        "from celery_singleton_lock import SingletonTask\n"
        f"app = Celery('proj', broker={broker.url!r})\n"
        f"app.conf.singleton_database_url = 'sqlite:///{tmp_path}/empty.db'\n"
        "@app.task(base=SingletonTask)\n"
        "def work(): ...\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "celery", "-A", "proj", *command.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert "celery -A app singleton db upgrade" in done.stdout + done.stderr
