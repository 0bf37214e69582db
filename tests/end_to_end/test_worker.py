"""Workers killed, stopped and told to stop, on Redis and RabbitMQ: no run is lost, none is doubled."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord

from celery_singleton_lock import RecordState, Skipped, dead_letters_of, open_store
from celery_singleton_lock.testing.servers import RedisServer

from .workers import Workers, until

pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TASKS = """
    @app.task(base=SingletonTask, unique_on=(), bind=True)
    def work(self, flag="go"):
        note("start")
        wait_for(flag)
        note("end")
        return self.current_run.fence

    @app.task(base=SingletonTask, bind=True, on_lease_lost="abort", autoretry_for=(Exception,))
    def abortable(self):
        if self.current_run.attempt > 1 or notes.exists("once"):
            return "again"
        note("start")
        notes.set("once", "1")
        try:
            time.sleep(60)
        except LeaseLost as lost:
            note("aborted")
            raise

    @app.task(base=SingletonTask, unique_on=(), time_limit=2)
    def limited():
        note("start")
        time.sleep(60)

    @app.task(base=SingletonTask, unique_on=(), soft_time_limit=1)
    def softly_limited():
        note("start")
        time.sleep(60)

    @app.task(base=SingletonTask, max_deliveries=2)
    def deadly():
        note("start")
        os.kill(os.getpid(), 9)

    LONG = 300

    @app.task(base=SingletonTask, unique_on=(), bind=True, lock_ttl=LONG)
    def long_leased(self):
        note("start")
        wait_for("go")
        return self.current_run.fence

    @app.task(base=SingletonTask, max_deliveries=3, lock_ttl=LONG)
    def long_leased_and_deadly():
        note("start")
        os.kill(os.getpid(), 9)

    class DiesAfterItsResult(SingletonTask):
        abstract = True

        def on_success(self, *args):
            os.kill(os.getpid(), 9)

    @app.task(base=DiesAfterItsResult, unique_on=(), lock_ttl=LONG)
    def stored():
        note("start")

    @app.task(base=SingletonTask, bind=True, unique_on=(), dead_letter=False)
    def ends(self, how):
        note("start")
        if how == "fail":
            raise ValueError("no")
        if how == "retry" and self.current_run.attempt == 1:
            self.retry(countdown=0.2)
        return how

    @app.task(base=SingletonTask, unique_on=(), overlap="queue")
    def in_line(number):
        note("start")
        time.sleep(0.2)
        note("end")
        return number

    @app.task()
    def collect(values):
        return values

    @app.task()
    def after(value):
        note("callback")
"""

StartWorkers = Callable[..., Workers]


@pytest.fixture
def notes() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest, notes: RedisServer) -> str:
    if request.param == "redis":
        return notes.url
    return str(request.getfixturevalue("rabbitmq").url)


@pytest.fixture
def start_workers(tmp_path: Path, notes: RedisServer) -> Iterator[StartWorkers]:
    started: list[Workers] = []

    def start(broker_url: str | None = None, tasks: str = TASKS) -> Workers:
        workers = Workers(tmp_path, broker_url or notes.url, notes, tasks)
        started.append(workers)
        return workers

    yield start
    for workers in started:
        workers.end()


def test_run_of_a_killed_worker_is_taken_over(broker_url: str, start_workers: StartWorkers) -> None:
    workers = start_workers(broker_url)
    killed = workers.start()
    run = workers.call("work", link=workers.client().tasks["proj.after"].s())
    until(lambda: workers.noted("start", run))
    workers.start()
    os.killpg(killed.pid, signal.SIGKILL)
    until(lambda: len(workers.noted("start", run)) == 2)
    workers.set("go")
    first, second = workers.noted("start", run)
    assert workers.result(run).get(timeout=20) == second.fence > first.fence
    until(lambda: workers.outcome(run) == "succeeded")
    until(lambda: workers.noted("callback"))
    assert len(workers.noted("callback")) == 1
    assert len(workers.noted("end", run)) == 1


def test_run_of_a_killed_child_is_taken_over(broker_url: str, start_workers: StartWorkers) -> None:
    workers = start_workers(broker_url)
    workers.start()
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    os.kill(workers.noted("start", run)[0].pid, signal.SIGKILL)
    until(lambda: len(workers.noted("start", run)) == 2)
    workers.set("go")
    first, second = workers.noted("start", run)
    assert workers.result(run).get(timeout=20) == second.fence > first.fence


def test_run_of_a_killed_child_is_taken_over_as_soon_as_its_parent_sees_it(
    broker_url: str, start_workers: StartWorkers
) -> None:
    workers = start_workers(broker_url)
    workers.start()
    run = workers.call("long_leased")
    until(lambda: workers.noted("start", run))
    os.kill(workers.noted("start", run)[0].pid, signal.SIGKILL)
    until(lambda: len(workers.noted("start", run)) == 2, within=20)
    workers.set("go")
    first, second = workers.noted("start", run)
    assert workers.result(run).get(timeout=20) == second.fence > first.fence
    until(lambda: workers.outcome(run) == "succeeded")


def test_child_that_died_after_its_result_is_not_followed(start_workers: StartWorkers) -> None:
    workers = start_workers()
    workers.start()
    run = workers.call("stored")
    until(lambda: workers.outcome(run) == "succeeded", within=20)
    assert len(workers.noted("start", run)) == 1
    until(lambda: workers.record("task:proj.stored").state is RecordState.FREE)  # type: ignore[union-attr]


def test_stopped_worker_wakes_up_and_leaves_nothing(
    broker_url: str, start_workers: StartWorkers
) -> None:
    workers = start_workers(broker_url)
    stopped = workers.start()
    run = workers.call("work", link=workers.client().tasks["proj.after"].s())
    until(lambda: workers.noted("start", run))
    os.killpg(stopped.pid, signal.SIGSTOP)
    workers.start()
    if broker_url.startswith("amqp"):
        # RabbitMQ would wait for its heartbeat. A copy is what a beat of ours would publish; the
        # stopped worker's connection takes one more.
        for _ in range(3):
            workers.call("work", task_id=run, link=workers.client().tasks["proj.after"].s())
    until(lambda: len(workers.noted("start", run)) == 2)
    os.killpg(stopped.pid, signal.SIGCONT)
    until(lambda: "lease_lost" in workers.log_of(0).read_text())
    workers.set("go")
    until(lambda: len(workers.noted("end", run)) == 2)
    second = workers.noted("start", run)[1]
    assert workers.result(run).get(timeout=20) == second.fence
    until(lambda: workers.outcome(run) == "succeeded" and workers.noted("callback"))
    time.sleep(1)
    assert len(workers.noted("callback")) == 1
    assert workers.result(run).get(timeout=20) == second.fence


def test_runs_in_line_come_one_by_one_from_two_workers(
    broker_url: str, start_workers: StartWorkers
) -> None:
    workers = start_workers(broker_url)
    workers.start()
    workers.start()
    runs = [workers.call("in_line", number) for number in range(6)]
    assert [workers.result(run).get(timeout=40) for run in runs] == list(range(6))
    inside = 0
    for note in workers.notes:
        inside += {"start": 1, "end": -1}[note.what]
        assert 0 <= inside <= 1
    assert len(workers.noted("start")) == 6


def test_canvas_with_a_skip_completes(broker_url: str, start_workers: StartWorkers) -> None:
    workers = start_workers(broker_url)
    workers.start()
    tasks = workers.client().tasks
    work, collect = tasks["proj.work"], tasks["proj.collect"]
    first = workers.call("work")
    until(lambda: workers.noted("start", first))
    chained = chain(work.si(), collect.s()).apply_async()
    chorded = chord([work.si(), collect.si("x")], collect.s()).apply_async()
    assert Skipped.read(chained.get(timeout=20)) is not None
    skipped, plain = chorded.get(timeout=20)
    assert Skipped.read(skipped) is not None
    assert plain == "x"
    workers.set("go")
    assert workers.result(first).get(timeout=20)


def test_run_that_outlives_its_ttl_is_executed_once_however_often_it_is_delivered(
    start_workers: StartWorkers,
) -> None:
    workers = start_workers()
    workers.start()
    workers.start()
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    time.sleep(21)  # ten times its ttl, and four redeliveries
    workers.set("go")
    first = workers.noted("start", run)[0]
    assert workers.result(run).get(timeout=20) == first.fence
    time.sleep(6)
    assert len(workers.noted("start", run)) == len(workers.noted("end", run)) == 1
    client: Any = workers.notes_server.connect()
    until(lambda: client.hlen("unacked") == 0 and client.llen(workers.queue) == 0)


def test_lost_lease_aborts_the_body_in_a_child(start_workers: StartWorkers) -> None:
    workers = start_workers()
    workers.start()
    run = workers.call("abortable")
    until(lambda: workers.noted("start", run))
    store = open_store(workers.notes_server.url)
    store.force_release(f"run:{run}", who="test", why="test")
    until(lambda: workers.noted("aborted", run), within=10)
    assert workers.result(run).get(timeout=20) == "again"


@pytest.mark.parametrize("task", ["limited", "softly_limited"])
def test_time_limit_is_the_end_and_frees_the_job(start_workers: StartWorkers, task: str) -> None:
    workers = start_workers()
    workers.start()
    run = workers.call(task)
    until(lambda: workers.outcome(run) == "failed")
    until(lambda: workers.record(f"task:proj.{task}").state is RecordState.FREE)  # type: ignore[union-attr]
    assert workers.result(run).state == "FAILURE"
    time.sleep(6)  # the broker would have delivered it again
    assert len(workers.noted("start", run)) == 1
    assert [letter.run_id for letter in dead_letters_of(workers.client()).list()] == [run]


@pytest.mark.parametrize("pool", ["prefork", "gevent", "eventlet"])
def test_terminated_run_is_revoked_and_frees_the_job(start_workers: StartWorkers, pool: str) -> None:
    workers = start_workers()
    workers.start(pool)
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    workers.client().control.revoke(run, terminate=True)
    until(lambda: workers.outcome(run) == "revoked")
    until(lambda: workers.record("task:proj.work").state is RecordState.FREE, within=10)  # type: ignore[union-attr]
    workers.set("go")
    other = workers.call("work")
    assert Skipped.read(workers.result(other).get(timeout=20)) is None


def test_run_that_kills_its_workers_is_given_up(start_workers: StartWorkers) -> None:
    workers = start_workers()
    workers.start()
    run = workers.call("deadly")
    until(lambda: workers.outcome(run) == "failed", within=60)
    assert len(workers.noted("start", run)) == 2
    assert "WorkersDied" in repr(workers.result(run).result)
    [letter] = dead_letters_of(workers.client()).list()
    assert (letter.run_id, letter.reason) == (run, "worker_died")


def test_deaths_that_the_parent_saw_are_counted(broker_url: str, start_workers: StartWorkers) -> None:
    workers = start_workers(broker_url)
    workers.start()
    run = workers.call("long_leased_and_deadly")
    until(lambda: workers.outcome(run) == "failed", within=60)
    assert len(workers.noted("start", run)) == 3
    assert "WorkersDied" in repr(workers.result(run).result)


def test_worker_with_a_message_aside_outlives_its_broker(start_workers: StartWorkers) -> None:
    with RedisServer(persistent=True) as broker:
        workers = start_workers(broker.url)
        worker = workers.start()
        # One waits for its time, and a copy for the end of the run, both with the worker.
        later = workers.call("ends", "succeed", countdown=8)
        run = workers.call("work")
        until(lambda: workers.noted("start", run))
        workers.call("work", task_id=run)
        until(lambda: "run_kept" in workers.log_of(0).read_text())
        broker.kill()
        time.sleep(2)
        broker.restart()
        workers.set("go")
        until(lambda: workers.outcome(later) == "succeeded", within=60)
        until(lambda: workers.outcome(run) == "succeeded", within=60)
        assert worker.poll() is None
        assert len(workers.noted("start", run)) == 1
        workers.end()


POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


@pytest.mark.parametrize("pool", POOLS)
def test_run_ends_alike_in_every_pool(start_workers: StartWorkers, pool: str) -> None:
    workers = start_workers()
    workers.start(pool)
    ends = {"succeed": "succeeded", "fail": "failed", "retry": "succeeded"}
    for how, outcome in ends.items():
        run = workers.call("ends", how)
        until(lambda run=run, outcome=outcome: workers.outcome(run) == outcome)  # type: ignore[misc]
        workers.call("ends", how, task_id=run)
        until(lambda: workers.record("task:proj.ends").state is RecordState.FREE)  # type: ignore[union-attr]
        assert len(workers.noted("start", run)) == (2 if how == "retry" else 1)
    client: Any = workers.notes_server.connect()
    until(lambda: client.hlen("unacked") == 0 and client.llen(workers.queue) == 0)
    assert len(workers.noted("start")) == 4  # the copies were not executed


@pytest.mark.parametrize("pool", ["threads", "gevent", "eventlet"])
def test_cold_shutdown_of_the_other_pools_loses_no_run(start_workers: StartWorkers, pool: str) -> None:
    workers = start_workers()
    worker = workers.start(pool)
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    worker.send_signal(signal.SIGQUIT)
    time.sleep(1)
    os.killpg(worker.pid, signal.SIGKILL)  # it may wait for its threads
    workers.start()
    until(lambda: len(workers.noted("start", run)) == 2)
    workers.set("go")
    assert workers.result(run).get(timeout=20) == workers.noted("start", run)[1].fence


@pytest.mark.parametrize("pool", POOLS)
def test_warm_shutdown_ends_the_run_in_every_pool(start_workers: StartWorkers, pool: str) -> None:
    workers = start_workers()
    worker = workers.start(pool)
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    worker.terminate()
    time.sleep(0.5)
    workers.set("go")
    assert worker.wait(30) == 0
    assert workers.outcome(run) == "succeeded"
    assert workers.record("task:proj.work").state is RecordState.FREE  # type: ignore[union-attr]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_cold_shutdown_hands_the_run_over_at_once(start_workers: StartWorkers, pool: str) -> None:
    tasks = TASKS + "    app.conf.singleton_lock_ttl = 20\n"
    workers = start_workers(tasks=tasks)
    worker = workers.start(pool)
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    worker.send_signal(signal.SIGQUIT)
    worker.wait(30)
    workers.set("go")
    began = time.monotonic()
    workers.start()
    assert workers.result(run).get(timeout=20)
    assert time.monotonic() - began < 15
    assert_takes_two(workers, run)


def test_soft_shutdown_hands_over_what_takes_too_long(start_workers: StartWorkers) -> None:
    tasks = TASKS + (
        "    app.conf.singleton_lock_ttl = 20\n    app.conf.worker_soft_shutdown_timeout = 1\n"
    )
    workers = start_workers(tasks=tasks)
    worker = workers.start()
    run = workers.call("work")
    until(lambda: workers.noted("start", run))
    worker.send_signal(signal.SIGQUIT)
    worker.wait(30)
    workers.set("go")
    workers.start()
    assert workers.result(run).get(timeout=15)
    assert_takes_two(workers, run)


def assert_takes_two(workers: Workers, run: str) -> None:
    first, second = workers.noted("start", run)
    assert second.fence > first.fence
    assert second.run == first.run
    assert len(workers.noted("end", run)) == 1


def test_retry_that_the_broker_does_not_confirm_is_not_taken_for_published(
    rabbitmq: Any, start_workers: StartWorkers
) -> None:
    world = start_workers(rabbitmq.url, RETRY_INTO_A_FULL_QUEUE)
    app = world.client()
    full = app.amqp.queues[f"{world.queue}-full"]
    with app.connection_for_write() as connection, connection.channel() as channel:
        bound = full.bind(channel)
        bound.declare()
        channel.basic_publish(
            channel.prepare_message(b"in the way", content_encoding="binary"), "", full.name
        )
        world.start("prefork", 1, "-Q", world.queue)
        run = world.call("retried")
        until(lambda: "reason='not published'" in world.log_of(0).read_text())
        assert world.outcome(run) is None
        bound.purge()
        found: list[Any] = []

        def is_there() -> bool:
            found.extend(filter(None, [bound.get()]))
            return bool(found)

        until(is_there)
        assert found[0].headers["id"] == run
        assert found[0].headers["retries"] == 1
        bound.delete()


RETRY_INTO_A_FULL_QUEUE = """
    from kombu import Queue
    full = os.environ["QUEUE"] + "-full"
    limits = {"x-max-length": 1, "x-overflow": "reject-publish"}
    app.conf.task_queues = [Queue(os.environ["QUEUE"]), Queue(full, queue_arguments=limits)]

    @app.task(base=SingletonTask, bind=True)
    def retried(self):
        note("start")
        raise self.retry(queue=full, countdown=0.1)
"""
