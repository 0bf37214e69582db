"""Effects happen exactly once: workers are stopped, woken too late, and killed at every step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.testing.steps import KillAt
from tests.integration.ledgers import DATABASES, ready_ledger, url_of

from .workers import Workers, until

TASKS = """
import sqlalchemy as sa
from sqlalchemy.orm import Session
app.conf.singleton_database_url = {url!r}
engine = sa.create_engine({url!r})
bills = sa.Table("bills", sa.MetaData(), sa.Column("pid", sa.Integer), sa.Column("run", sa.Text))

@app.task(base=SingletonTask, bind=True, max_deliveries=20)
def bill(self, how):
    note("in")
    is_first = notes.incr("tries") == 1
    with Session(engine) as session, self.current_run.transaction(session, result="billed"):
        if how == "sleep" and is_first:
            note("asleep")
            wait_for("awake")
        session.execute(bills.insert(), {{"pid": os.getpid(), "run": self.current_run.id}})
    note("committed")
    if how == "die" and is_first:
        wait_for("never")
    return "billed"
"""


class Shop(Workers):
    """Workers that write bills, beside the ledger, into one database."""

    def __init__(self, place: Path, url: str, broker: RedisServer) -> None:
        super().__init__(place, broker.url, broker, TASKS.format(url=url))
        self._ledger = ready_ledger(url)
        self._write("DROP TABLE IF EXISTS bills")
        self._write("CREATE TABLE bills (pid INTEGER, run VARCHAR(255))")

    def bills(self, of: str = "run") -> list[Any]:
        query: Any = sa.select(sa.column(of)).select_from(sa.table("bills"))
        return self._ledger.read(lambda connection: list(connection.scalars(query)))

    def end(self) -> None:
        super().end()
        self._write("DROP TABLE bills")
        self._ledger.close()

    def _write(self, statement: str) -> None:
        self._ledger.write(lambda connection: connection.execute(sa.text(statement)))


@pytest.fixture
def workers(tmp_path: Path, broker: RedisServer) -> Iterator[Shop]:
    shop = Shop(tmp_path, f"sqlite:///{tmp_path}/shop.db", broker)
    yield shop
    shop.end()


@pytest.fixture(params=DATABASES)
def shop(request: pytest.FixtureRequest, tmp_path: Path, broker: RedisServer) -> Iterator[Shop]:
    shop = Shop(tmp_path, url_of(request.param, request), broker)
    yield shop
    shop.end()


def test_a_worker_that_wakes_up_late_commits_nothing(workers: Shop) -> None:
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
    assert workers.bills("pid") == [committed.pid]
    assert workers.result(run).get(timeout=20) == "billed"


def test_a_worker_that_is_killed_right_after_the_commit_is_not_repeated_but_its_result_is_told(
    workers: Shop,
) -> None:
    killed = workers.start("prefork", 1)
    run = workers.call("bill", "die")
    until(lambda: workers.noted("committed"))
    os.killpg(killed.pid, signal.SIGKILL)
    workers.start("prefork", 1)
    assert workers.result(run).get(timeout=60) == "billed"
    assert len(workers.noted("in")) == 1
    assert len(workers.bills()) == 1


STEPS = (
    "begun", "claiming", "claim taken", "effects written", "effects claimed", "effects committed",
    "executed", "concluded", "finished",
)  # fmt: skip


def test_runs_whose_workers_are_killed_at_every_step_have_one_effect_each(
    shop: Shop, tmp_path: Path
) -> None:
    kill_at = KillAt(tmp_path)
    shop.start("prefork", 4, **kill_at.environment(*STEPS))
    runs = [shop.call("bill", f"customer {number}") for number in range(12)]
    until(lambda: all(map(kill_at.has_happened, STEPS)), within=90)
    assert {shop.result(run).get(timeout=60) for run in runs} == {"billed"}
    assert sorted(shop.bills()) == sorted(runs)


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
