"""What the outbox costs: rows through the relay, and the time from a commit to the broker."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import redis
import sqlalchemy as sa
from celery import Celery
from sqlalchemy.orm import Session

from celery_singleton_lock.testing.servers import PostgresServer, RedisServer, ServerMissing

from . import promises
from .chapters import Chapter, NotMeasured, Pace
from .measure import Answer, Contest, Question, Spread, Subject, against_bound, answer, promised
from .replicas import on_all_cores

ROWS_A_SECOND: Final = 2_000
SHARE_OF_SEND_TASK: Final = 0.8
APP = """
    import os

    from celery import Celery

    app = Celery("bench", broker=os.environ["BROKER"])
    app.conf.update(
        singleton_outbox_url=os.environ["DATABASE"], singleton_key_prefix=os.environ["PREFIX"]
    )
"""


@dataclass(frozen=True, slots=True)
class Effort:
    rows: int
    rounds: int
    commits: int


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(rows=500, rounds=2, commits=20),
    "usual": Effort(rows=2_000, rounds=3, commits=100),
    "full": Effort(rows=5_000, rounds=5, commits=300),
}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield f"outbox on PostgreSQL: {effort.rows:,} rows; times are of one", measured(effort)


def measured(effort: Effort) -> Iterator[Answer | NotMeasured]:
    try:
        with PostgresServer() as database, RedisServer() as broker:
            yield from relayed(effort, database.url, broker)
            yield told(effort, database.url, broker)
    except ServerMissing as missing:
        yield NotMeasured("the outbox", str(missing))


def relayed(effort: Effort, database_url: str, broker: RedisServer) -> Iterator[Answer]:
    from celery_singleton_lock.outbox import Relay

    bench = Bench(database_url, broker)
    relay = Relay(bench.app)

    def send_all() -> None:
        for number in range(effort.rows):
            bench.app.send_task("bench.noop", (number,))

    def refill() -> None:
        bench.empty()
        bench.write(effort.rows)

    refill()
    subjects = {
        "relay": Subject(relay.drain, 1, effort.rows, tidy_up=refill),
        "send_task": Subject(send_all, 1, effort.rows),
        "send": Subject(lambda: bench.write(effort.rows), 1, effort.rows, tidy_up=refill),
    }
    questions = [
        Question("relay to a bare loop of send_task", "relay", "send_task"),
        Question("outbox.send and commit, to send_task", "send", "send_task"),
    ]
    with on_all_cores():
        [to_send_task, *others] = Contest(subjects, questions, effort.rounds).decide()
    yield to_send_task
    yield quick_enough(to_send_task)
    yield from others
    relay.close()
    bench.close()


def quick_enough(relay_to_send_task: Answer) -> Answer:
    """The promise is a rate, or a share of what Celery itself can do here, whichever is less."""
    relay, send_task = relay_to_send_task.measured.median, relay_to_send_task.against.median
    print(f"    rows a second: {1 / relay:,.0f} by the relay, {1 / send_task:,.0f} by send_task")
    longest = max(1 / ROWS_A_SECOND, send_task / SHARE_OF_SEND_TASK)
    question = promised(promises.OUTBOX, "relay", "allowed")
    return answer(question, {"relay": [relay], "allowed": [longest]})


def told(effort: Effort, database_url: str, broker: RedisServer) -> Answer:
    """The relay is another process, so that only PostgreSQL can tell it."""
    bench = Bench(database_url, broker)
    client: Any = redis.Redis.from_url(broker.url, socket_timeout=None)  # the relay has yet to start
    times = []
    with on_all_cores(), relay_process(bench):
        for _ in range(effort.commits + 5):
            began = time.perf_counter()
            bench.write(1)
            client.brpop(bench.queue, timeout=60)
            times.append(time.perf_counter() - began)
    client.close()
    bench.close()
    # The first ones open connections.
    median = Spread.of(times[5:]).median
    return against_bound(promises.COMMIT_TO_BROKER, [median])


class Bench:
    def __init__(self, database_url: str, broker: RedisServer) -> None:
        from celery_singleton_lock import outbox

        self.prefix, self.queue = uuid.uuid4().hex, f"q{uuid.uuid4().hex}"
        self.broker, self.database_url = broker, database_url
        self.app = Celery("bench", broker=broker.url, set_as_current=False)
        self.app.conf.update(
            singleton_outbox_url=database_url,
            singleton_key_prefix=self.prefix,
            task_default_queue=self.queue,
        )
        self.engine = sa.create_engine(database_url)
        metadata = sa.MetaData()
        outbox.add_tables(metadata)
        metadata.create_all(self.engine)

    def write(self, rows: int) -> None:
        from celery_singleton_lock import outbox

        with Session(self.engine) as session, session.begin():
            for number in range(rows):
                outbox.send(session, "bench.noop", (number,), app=self.app)

    def empty(self) -> None:
        with self.engine.begin() as connection:
            connection.execute(sa.text("TRUNCATE singleton_outbox"))
        client: Any = self.broker.connect()
        client.delete(self.queue)

    def close(self) -> None:
        self.engine.dispose()
        self.app.close()


@contextmanager
def relay_process(bench: Bench) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "bench_app.py").write_text(textwrap.dedent(APP))
        environment = {
            "BROKER": bench.broker.url,
            "DATABASE": bench.database_url,
            "PREFIX": bench.prefix,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "bench_app", "singleton", "outbox", "relay"],
            cwd=place,
            env=os.environ | environment,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            process.wait()
