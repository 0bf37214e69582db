"""Real workers and beats, asked by probes, and scraped by a real Prometheus."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy.orm import Session

from celery_singleton_lock import outbox
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.testing.servers.ports import free_port
from tests.support import start_or_skip

from .prometheus import PrometheusServer
from .workers import Workers, until

ROOT = Path(__file__).parents[2]
TASKS = """
import datetime
app.conf.singleton_http = os.environ.get("HTTP")
app.conf.singleton_stuck_after = 3
app.conf.singleton_outbox_url = os.environ.get("OUTBOX")
app.conf.worker_send_task_events = True
app.conf.beat_enable_remote_control = True
if "UNTIL" in os.environ:
    app.conf.beat_schedule = {
        name: {
            "task": "proj.tick", "schedule": 1.0,
            "end": datetime.datetime.fromisoformat(os.environ["UNTIL"]),
        }
        for name in ("a", "b")
    }

from celery_singleton_lock import SingletonScheduler
class Sticking(SingletonScheduler):
    def after_publish(self, due):
        notes.set("beat", os.getpid())
        if notes.exists("stick"):
            time.sleep(600)

if "STICK" in os.environ:
    from celery.signals import worker_ready
    def stick():
        if notes.exists("stick"):
            time.sleep(600)
    @worker_ready.connect(weak=False)
    def wait_to_stick(sender, **_):
        sender.timer.call_repeatedly(0.2, stick)

@app.task(base=SingletonTask, unique_on=(), overlap="allow")
def tick():
    note("tick")

@app.task(base=SingletonTask)
def level():
    import logging
    note("level", level=logging.getLogger("celery_singleton_lock.x").getEffectiveLevel())

@app.task(base=SingletonTask)
def ok(n):
    note("ok")

@app.task(base=SingletonTask)
def fails(n):
    raise ValueError(n)

@app.task(base=SingletonTask, bind=True, retry_backoff=1, retry_jitter=False)
def second_time(self, n):
    if self.request.retries == 0:
        raise self.retry(countdown=0)
    note("second_time")

@app.task(base=SingletonTask, unique_on=())
def one_at_a_time():
    note("one_at_a_time")
    wait_for("go")

@app.task(base=SingletonTask, unique_on=(), overlap="queue")
def one_after_the_other(n):
    note("one_after_the_other")
    wait_for("go on")
"""


class Replicas(Workers):
    """With beats, and each with an address."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.addresses: list[str] = []

    def new_address(self) -> str:
        self.addresses.append(f"127.0.0.1:{free_port()}")
        return self.addresses[-1]

    def start(self, pool: str = "prefork", concurrency: int = 2, *more: str, **environment: str) -> Any:
        self._environment["HTTP"] = self.new_address()
        return super().start(pool, concurrency, *more, **environment)

    def start_beat(
        self, address: str | None = None, scheduler: str = "singleton"
    ) -> subprocess.Popen[bytes]:
        command = f"-m celery -A proj beat -S {scheduler} -l INFO --pidfile="
        log = self.log_of(len(self.processes)).open("wb")
        process = subprocess.Popen(
            [sys.executable, *command.split()],
            cwd=self.place,
            env=os.environ | self._environment | {"HTTP": address or self.new_address()},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self.processes.append(process)
        return process

    def start_flower(self) -> str:
        """Its address, when it answers."""
        port = free_port()
        with self.log_of(len(self.processes)).open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "celery", "-A", "proj", "singleton", "flower", f"--port={port}"],
                cwd=self.place,
                env=os.environ | self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        address = f"127.0.0.1:{port}"
        until(lambda: ask(address, "/healthcheck")[0] == 200)
        return address

    def command(self, line: str, **environment: str) -> tuple[int, str]:
        """Exit code and output of a command of ours."""
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "proj", "singleton", *line.split()],
            cwd=self.place,
            env=os.environ | self._environment | environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    def ask(self, path: str, number: int = -1) -> tuple[int, Any]:
        return ask(self.addresses[number], path)


def ask(address: str, path: str) -> tuple[int, Any]:
    """Status, and what was said; 0 where nobody answers."""
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            status, body = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, body = error.code, error.read().decode()
    except OSError:
        return 0, None
    return status, json.loads(body) if body.startswith("{") else body


def sample(address: str, name: str, **labels: str) -> float | None:
    """One number of a page of metrics; None: it is not there."""
    for family in text_string_to_metric_families(ask(address, "/metrics")[1] or ""):
        for each in family.samples:
            if each.name == name and each.labels == labels:
                return float(each.value)
    return None


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer(persistent=True) as server:
        yield server


@pytest.fixture
def replicas(tmp_path: Path, server: RedisServer) -> Iterator[Replicas]:
    replicas = Replicas(tmp_path, server.url, server, TASKS)
    yield replicas
    replicas.end()


def ready(replicas: Replicas, number: int = -1) -> bool:
    return replicas.ask("/readyz", number)[0] == 200


NOTHING_TO_SHOW = {"Missed, and published again", "Outbox"}
"""Panels of the dashboard that stay empty when nothing goes wrong, and without an outbox."""


def titles_without_series(prometheus: PrometheusServer) -> set[str]:
    """Panels of the shipped dashboard of which no query finds anything."""
    dashboard = json.loads((ROOT / "deploy/grafana/dashboard.json").read_text())
    macros = {"$__rate_interval": "1m", "$__range": "1h", "$instance": ".*", "$task": ".*"}
    empty = set()
    for panel in dashboard["panels"]:
        queries = [target["expr"] for target in panel.get("targets", ())]
        for macro, value in macros.items():
            queries = [each.replace(macro, value) for each in queries]
        if queries and not any(prometheus.query(each) for each in queries):
            empty.add(panel["title"])
    return empty


def test_promql_equals_what_ran(replicas: Replicas) -> None:
    # The pool's children die all the time: what they have counted must not.
    replicas.start("prefork", 2, "--max-tasks-per-child=4")
    # It counts what it hears: from before the first run.
    flower = replicas.start_flower()
    replicas._environment["UNTIL"] = (datetime.now(UTC) + timedelta(seconds=12)).isoformat()
    replicas.start_beat()
    replicas.start_beat()
    worker, *beats = replicas.addresses
    worker_log = replicas.log_of(0).read_text
    jobs = {"worker": [worker], "beat": beats, "flower": [flower]}
    prometheus = start_or_skip(PrometheusServer(jobs))
    try:
        letters = [replicas.call("fails", n) for n in range(2)]
        for n in range(20):
            replicas.call("ok", n)
        holder = replicas.call("one_at_a_time")
        until(lambda: replicas.noted("one_at_a_time"))
        skipped = [replicas.call("one_at_a_time") for _ in range(3)]
        until(lambda: all(replicas.result(run).ready() for run in skipped))
        held = 'singleton_lease_acquisitions_total{kind="task",result="held"}'
        until(lambda: prometheus.value(held) == 3)
        # A second attempt may be there before the first has let go: then it is held, too.
        for n in range(3):
            replicas.call("second_time", n)
        replicas.set("go")
        until(lambda: replicas.outcome(holder) == "succeeded")
        queued = [replicas.call("one_after_the_other", 0)]
        until(lambda: replicas.noted("one_after_the_other"))
        queued += [replicas.call("one_after_the_other", n) for n in (1, 2)]
        until(lambda: all(f"run={run} reason='overlap'" in worker_log() for run in queued[1:]))
        replicas.set("go on")
        until(lambda: len(replicas.noted("ok")) == 20 and len(replicas.noted("second_time")) == 3)
        until(lambda: all(replicas.outcome(run) == "succeeded" for run in queued))
        until(lambda: all(replicas.outcome(run) == "failed" for run in letters))
        ends_at = datetime.fromisoformat(replicas._environment["UNTIL"]) + timedelta(seconds=2)
        until(lambda: datetime.now(UTC) > ends_at)

        def expected() -> dict[str, float]:
            ticks = len(replicas.noted("tick"))
            return {
                "sum(singleton_slots_published_total)": ticks,
                "sum(singleton_slot_lag_seconds_count)": ticks,
                'singleton_runs_started_total{task="proj.tick"}': ticks,
                'singleton_runs_ended_total{task="proj.tick",outcome="succeeded"}': ticks,
                'singleton_runs_ended_total{task="proj.ok",outcome="succeeded"}': 20,
                'singleton_run_seconds_count{task="proj.ok"}': 20,
                'singleton_runs_ended_total{task="proj.fails",outcome="failed"}': 2,
                'sum(singleton_dead_letters_total{task="proj.fails"})': 2,
                'singleton_runs_ended_total{task="proj.second_time",outcome="retried"}': 3,
                'singleton_runs_ended_total{task="proj.second_time",outcome="succeeded"}': 3,
                'singleton_runs_started_total{task="proj.one_at_a_time"}': 1,
                'singleton_runs_skipped_total{task="proj.one_at_a_time",reason="overlap"}': 3,
                # On a busy machine the broker delivers one again, and that copy has not waited.
                'singleton_lease_wait_seconds_count{kind="run"} >= bool 1': 1,
                "sum(singleton_runs_started_total)": ticks + 20 + 2 + 6 + 1 + 3,
                "sum(singleton_runs_in_progress)": 0,
                'singleton_runs_started_total{task="proj.level"}': 0,
                "min(singleton_beat_members)": 2,
                "max(singleton_beat_members)": 2,
                "sum(singleton_ready)": 3,
                "sum(up)": 4,
                # Flower has heard of all that the workers have counted, under names of its own.
                "sum(flower_singleton_runs_ended_total)": ticks + 20 + 2 + 6 + 1 + 3,
                "sum(singleton_runs_ended_total)": ticks + 20 + 2 + 6 + 1 + 3,
                'flower_singleton_runs_ended_total{task="proj.fails",outcome="failed"}': 2,
                'flower_singleton_runs_ended_total{task="proj.second_time",outcome="retried"}': 3,
                'flower_singleton_run_seconds_count{task="proj.ok"}': 20,
                "sum(flower_singleton_runs_skipped_total)": 3,
                "sum(flower_singleton_dead_letters_total)": 2,
                "flower_singleton_beat_members": 2,
                "flower_singleton_store_up": 1,
            }

        def wrong() -> dict[str, Any]:
            found = {promql: (prometheus.value(promql), value) for promql, value in expected().items()}
            return {promql: values for promql, values in found.items() if values[0] != values[1]}

        give_up_at = time.monotonic() + 15
        while wrong() and time.monotonic() < give_up_at:
            time.sleep(0.5)
        assert wrong() == {}
        ticks = [note.run for note in replicas.noted("tick")]
        assert len(ticks) == len(set(ticks)) > 2
        # Depth is asked of the broker, now and then.
        until(lambda: prometheus.value("max(singleton_dead_letters_waiting)") == 2, within=20)
        until(lambda: prometheus.value("flower_singleton_dead_letters_waiting") == 2, within=20)
        assert wrong() == {}, "scrapes change nothing"
        assert titles_without_series(prometheus) - NOTHING_TO_SHOW == set()
    finally:
        prometheus.stop()


def test_outbox_is_seen_by_workers_and_by_flower(replicas: Replicas, tmp_path: Path) -> None:
    url = replicas._environment["OUTBOX"] = f"sqlite:///{tmp_path}/shop.db"
    engine, metadata = sa.create_engine(url), sa.MetaData()
    outbox.add_tables(metadata)
    metadata.create_all(engine)
    with Session(engine) as session, session.begin():
        for n in range(6):
            outbox.send(session, replicas.client().tasks["proj.ok"], (n,))
        session.flush()
        dead, *held = session.scalars(sa.select(outbox.OutboxRow)).all()[:3]
        dead.state = "dead"
        for row in held:
            row.state = "held"
    replicas.start("solo", 1)
    for address, before in ((replicas.addresses[0], ""), (replicas.start_flower(), "flower_")):
        rows = {
            state: sample(address, f"{before}singleton_outbox", state=state)
            for state in ("pending", "held", "dead")
        }
        assert rows == {"pending": 3, "held": 2, "dead": 1}
        oldest = sample(address, f"{before}singleton_outbox_oldest_seconds")
        assert oldest is not None
        assert 0 < oldest < 60


@pytest.mark.parametrize("pool", ["threads", "solo", "gevent"])
def test_pools_of_one_process_count_alike(replicas: Replicas, pool: str) -> None:
    replicas.start(pool, 2)
    until(lambda: ready(replicas))
    for n in range(5):
        replicas.call("ok", n)
    done = 'singleton_runs_ended_total{outcome="succeeded",task="proj.ok"} 5.0'
    until(lambda: done in replicas.ask("/metrics")[1])
    assert replicas.ask("/livez") == (200, {"alive": True, "reasons": []})


def test_worker_without_store_is_alive_and_not_ready(replicas: Replicas, server: RedisServer) -> None:
    replicas.start()
    until(lambda: ready(replicas))
    server.kill()
    until(lambda: replicas.ask("/readyz")[0] == 503)
    time.sleep(4)  # longer than stuck_after: what waits is not stuck
    assert replicas.ask("/livez") == (200, {"alive": True, "reasons": []})
    reasons = replicas.ask("/readyz")[1]["reasons"]
    assert "it is not connected to the broker" in reasons
    assert any("the lease store is away" in reason for reason in reasons)
    server.start()
    until(lambda: ready(replicas))


def test_beat_without_store_is_alive_and_not_ready_and_a_stuck_one_is_not_alive(
    replicas: Replicas, server: RedisServer
) -> None:
    beat = replicas.start_beat()
    until(lambda: ready(replicas))
    server.kill()
    until(lambda: replicas.ask("/readyz")[0] == 503)
    time.sleep(4)
    assert replicas.ask("/livez")[0] == 200
    server.start()
    until(lambda: ready(replicas))
    assert beat.poll() is None
    beat.send_signal(signal.SIGTERM)
    assert beat.wait(10) == 0
    assert replicas.ask("/livez")[0] == 0


def test_stuck_tick_is_not_alive(replicas: Replicas) -> None:
    replicas._environment["UNTIL"] = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    replicas.start_beat(scheduler="proj:Sticking")
    until(lambda: ready(replicas))
    replicas.set("stick")
    until(lambda: replicas.ask("/livez")[0] == 503)
    [reason] = replicas.ask("/livez")[1]["reasons"]
    assert reason.startswith("the tick of beat has been stuck for ")


def test_stuck_consumer_is_not_alive(replicas: Replicas) -> None:
    replicas._environment["STICK"] = "1"
    replicas.start()
    until(lambda: ready(replicas))
    replicas.set("stick")
    until(lambda: replicas.ask("/livez")[0] == 503)
    [reason] = replicas.ask("/livez")[1]["reasons"]
    assert reason.startswith("the consumer of the worker has been stuck for ")


def test_worker_that_runs_one_long_task_in_its_own_thread_is_alive(replicas: Replicas) -> None:
    replicas.start("solo", 1)
    replicas.call("one_at_a_time")
    until(lambda: replicas.noted("one_at_a_time"))
    time.sleep(4)  # longer than stuck_after
    assert replicas.ask("/livez")[0] == 200
    replicas.set("go")


def test_second_process_on_an_address_works_without_it(replicas: Replicas) -> None:
    replicas.start()
    replicas.start_beat(replicas.addresses[0])
    until(lambda: "http_not_served" in replicas.log_of(1).read_text())
    assert "Each process needs an address of its own" in replicas.log_of(1).read_text()
    assert ready(replicas, 0)


def test_beat_inside_a_worker_is_counted_by_the_worker(replicas: Replicas) -> None:
    replicas._environment["UNTIL"] = (datetime.now(UTC) + timedelta(seconds=60)).isoformat()
    replicas.start("prefork", 1, "-B", "--scheduler", "singleton")
    until(lambda: 'singleton_slots_published_total{entry="a"}' in replicas.ask("/metrics")[1])
    assert "http_not_served" not in replicas.log_of(0).read_text()


def test_worker_with_a_beat_inside_answers_for_both(replicas: Replicas, server: RedisServer) -> None:
    replicas._environment["UNTIL"] = (datetime.now(UTC) + timedelta(seconds=300)).isoformat()
    replicas.start("prefork", 1, "-B", "--scheduler", "proj:Sticking")
    until(lambda: ready(replicas))
    assert replicas.ask("/livez") == (200, {"alive": True, "reasons": []})
    server.kill()
    away = "the beat inside it is not ready: the lease store is away"
    until(lambda: any(reason.startswith(away) for reason in replicas.ask("/readyz")[1]["reasons"]))
    assert replicas.ask("/livez")[0] == 200
    server.start()
    until(lambda: ready(replicas))
    # Stuck, and then dead.
    replicas.set("stick")
    until(lambda: replicas.ask("/livez")[0] == 503)
    [reason] = replicas.ask("/livez")[1]["reasons"]
    assert reason.startswith("the tick of the beat inside it has been stuck for ")
    client: Any = server.connect()
    os.kill(int(client.get("beat")), signal.SIGKILL)
    until(lambda: "the beat inside it has ended" in replicas.ask("/livez")[1]["reasons"])


# On the command line


def test_health_command_asks_the_process(replicas: Replicas, server: RedisServer) -> None:
    replicas.start()
    until(lambda: ready(replicas))
    assert replicas.command("health") == (0, "ready\n")
    server.kill()
    until(lambda: not ready(replicas))
    code, said = replicas.command("health --json")
    assert code == 1
    assert json.loads(said)["ready"] is False
    assert "the lease store is away" in said
    assert replicas.command("health --live") == (0, "alive\n")
    nobody = f"127.0.0.1:{free_port()}"
    code, said = replicas.command(f"health --live --json --address {nobody}")
    assert (code, json.loads(said)["alive"]) == (1, False)


def test_health_command_without_http_asks_whoever_knows(
    replicas: Replicas, server: RedisServer
) -> None:
    # The processes serve; but the command is not told, and looks elsewhere.
    replicas.start("solo", 1, "-n", f"me@{socket.gethostname()}")
    del replicas._environment["HTTP"]
    assert replicas.command("health worker") == (0, "ready\n")
    assert replicas.command("health beat") == (1, "not ready\n")
    replicas.start_beat()
    until(lambda: ready(replicas))
    assert replicas.command("health beat") == (0, "ready\n")
    server.kill()
    assert replicas.command("health beat") == (1, "not ready\n")
    assert replicas.command("health beat --live") == (0, "alive\n"), "who waits is alive"


def test_log_level_is_changed_in_workers_their_children_and_beats(replicas: Replicas) -> None:
    replicas.start()
    replicas.start_beat()
    until(lambda: ready(replicas))

    def levels() -> set[int]:
        client: Any = replicas.notes_server.connect()
        notes = [json.loads(text) for text in client.lrange("notes", 0, -1)]
        return {note["level"] for note in notes if note["what"] == "level"}

    replicas.call("level")
    until(lambda: levels() == {20})
    assert "http_request" not in replicas.log_of(1).read_text()
    code, said = replicas.command("log-level debug --timeout 4")
    assert code == 0
    assert said.count("the log level is DEBUG") == 2, said
    replicas.call("level")
    until(lambda: levels() == {20, 10})
    replicas.ask("/livez")
    until(lambda: "http_request line=" in replicas.log_of(1).read_text())
    assert replicas.command("log-level chatty")[0] == 2
