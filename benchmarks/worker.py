"""What a `SingletonTask` costs a worker and a client, beside a plain task with the same `acks_late`."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from celery import Celery

from celery_singleton_lock.testing.servers import RedisServer

from . import promises
from .chapters import Chapter, Pace
from .measure import Answer, Contest, Subject, against_bound, answer, promised, until_kept
from .replicas import on_all_cores

APP = """
    import os

    from celery import Celery

    app = Celery(
        "bench", broker=os.environ["BROKER"], backend=os.environ["BROKER"], set_as_current=False
    )
    app.conf.task_ignore_result = bool(os.environ.get("IGNORE_RESULTS"))


    def noop(number):
        pass


    late = {"acks_late": True, "reject_on_worker_lost": True}
    own = {"shared": False}
    app.task(name="plain", **late, **own)(noop)
"""
OURS = """
    from celery_singleton_lock import SingletonTask

    app.conf.singleton_lock_url = os.environ["LOCKS"]
    app.conf.singleton_database_url = os.environ.get("LEDGER")
    app.task(name="ours", base=SingletonTask, **own)(noop)
    app.task(name="joined", base=SingletonTask, on_duplicate="join", **own)(noop)
"""
NOTHING_MORE = ""
"""For an app in which nothing is of ours."""
POOLS: Final[Mapping[str, tuple[str, ...]]] = {
    "solo": ("--pool=solo",),
    "prefork -c2": ("--pool=prefork", "--concurrency=2"),
}
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Effort:
    tasks: int
    rounds: int
    calls: int
    call_rounds: int


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(tasks=200, rounds=1, calls=20, call_rounds=3),
    "usual": Effort(tasks=1_000, rounds=3, calls=200, call_rounds=15),
    "full": Effort(tasks=5_000, rounds=3, calls=200, call_rounds=40),
}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield f"worker: {effort.tasks:,} tasks that do nothing; times are of one task", drained(effort)
    yield "client: apply_async; times are of one call", called(effort)


def drained(effort: Effort) -> Iterator[Answer]:
    with RedisServer() as broker, RedisServer() as locks, ExitStack() as stack:
        # Not one worker for both: a worker with tasks of ours does more, and less, for every message.
        apps = {
            "ours": stack.enter_context(bench_app(broker, locks)),
            "plain": stack.enter_context(bench_app(broker, locks, NOTHING_MORE)),
        }
        for pool, ignored in itertools.product(POOLS, ("", "yes")):

            def measure(pool: str = pool, ignored: str = ignored) -> list[Answer]:
                samples: dict[str, list[float]] = {task: [] for task in apps}
                for number in range(effort.rounds):
                    for task in sorted(samples, reverse=bool(number % 2)):
                        place, app = apps[task]
                        queue = fill(app, task, effort.tasks)
                        took = drain(broker, place, queue, pool, effort.tasks, IGNORE_RESULTS=ignored)
                        samples[task].append(took)
                promise = promises.TASKS[pool, "ignored" if ignored else "kept"]
                return [answer(promised(promise, "ours", "plain"), samples)]

            yield from until_kept(measure, repeats=1 if effort.rounds > 1 else 0)
        place, app = apps["ours"]
        before = scripts_run(locks)
        drain(broker, place, fill(app, "ours", effort.tasks), "solo", effort.tasks)
        trips = (scripts_run(locks) - before) / effort.tasks
        # A round trip more now and then: leases that are renewed, and what is asked at the start.
        yield against_bound(promises.TASK_ROUND_TRIPS, [round(trips, 1)])


def called(effort: Effort) -> Iterator[Answer]:
    with RedisServer() as locks, ExitStack() as stack:
        subjects: dict[str, Subject] = {}
        for task, more in (("ours", OURS), ("plain", NOTHING_MORE), ("joined", OURS)):
            # A broker each: apps of a process share the producers of an address, and so whatever is
            # done for one of them.
            broker = stack.enter_context(RedisServer())
            _, app = stack.enter_context(bench_app(broker, locks, more))
            subjects[task] = Subject(Caller(app, task), effort.calls)
        questions = [
            promised(promises.CALL, "ours", "plain"),
            promised(promises.CALL_ON_DUPLICATE, "joined", "plain"),
        ]
        yield from Contest(subjects, questions, effort.call_rounds).decide()


class Caller:
    """Each call has arguments of its own: nobody else is queued with them."""

    def __init__(self, app: Celery, task: str) -> None:
        self._task = app.tasks[task]

    def __call__(self) -> None:
        self._task.apply_async((next(_numbers),))


@contextmanager
def bench_app(broker: RedisServer, locks: RedisServer, more: str = OURS) -> Iterator[tuple[Path, Any]]:
    """An app with `plain` tasks and `more`, here and as a module for workers in the folder."""
    program = textwrap.dedent(APP) + textwrap.dedent(more)
    environment = {"BROKER": broker.url, "LOCKS": locks.url}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "bench_app.py").write_text(program)
        os.environ.update(environment)
        names: dict[str, Any] = {"__name__": "bench_app"}
        exec(program, names)
        try:
            yield place, names["app"]
        finally:
            names["app"].close()
            for name in environment:
                os.environ.pop(name, None)


def fill(app: Any, task: str, count: int) -> str:
    """A queue of its own, with so many messages."""
    queue = f"queue{next(_numbers)}"
    with app.producer_or_acquire() as producer:
        for _ in range(count):
            app.tasks[task].apply_async((next(_numbers),), queue=queue, producer=producer)
    return queue


def drain(
    broker: RedisServer, place: Path, queue: str, pool: str, count: int, **environment: str
) -> float:
    """Seconds for one of its messages, from the first that a worker takes to the last acknowledged."""
    client: Any = broker.connect()
    command = [sys.executable, "-m", "celery", "-A", "bench_app", "worker", "-Q", queue, *POOLS[pool]]
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat", "-l", "ERROR"]
    with on_all_cores():
        worker = subprocess.Popen(
            [*command, *quiet],
            cwd=place,
            env=os.environ | environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            until(lambda: client.llen(queue) < count, 90)
            began = time.perf_counter()
            until(lambda: client.llen(queue) == 0 and client.hlen("unacked") == 0, 300)
            return (time.perf_counter() - began) / count
        finally:
            worker.terminate()
            worker.wait(60)


def until(fact: Any, seconds: float) -> None:
    give_up_at = time.monotonic() + seconds
    while not fact():
        if time.monotonic() > give_up_at:
            raise TimeoutError("the worker does not work")
        time.sleep(0.005)


def scripts_run(server: RedisServer) -> int:
    client: Any = server.connect()
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))
