"""What the ledger costs: a worker's history, and questions to a long one."""

from __future__ import annotations

import gc
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from celery_singleton_lock.ledger import Ledger, open_ledger
from celery_singleton_lock.ledger.happenings import Status
from celery_singleton_lock.ledger.queries import Filter, Queries
from celery_singleton_lock.testing.servers import PostgresServer, RedisServer, ServerMissing

from . import promises
from .chapters import Chapter, NotMeasured, Pace
from .measure import Answer, against_bound, answer, promised, until_kept
from .worker import bench_app, drain, fill

PREFIX: Final = "bench"
FILL = """
    INSERT INTO singleton_runs (prefix, run_id, task, entry, slot, due_at, status, stage, attempt,
                                fence, worker, started_at, ended_at, lag_s, duration_s)
    SELECT 'bench', 'run-' || n, 'task-' || n % 20, 'entry-' || n % 200,
           now() - n * interval '2 seconds', now() - n * interval '2 seconds',
           CASE WHEN n % 100 = 0 THEN 'failed' WHEN n % 1000 = 1 THEN 'missed' ELSE 'succeeded' END,
           n, 1, n, 'w' || n % 8, now() - n * interval '2 seconds', now() - n * interval '2 seconds',
           0.1, random() * 100
    FROM generate_series(1, :rows) AS n
"""


@dataclass(frozen=True, slots=True)
class Effort:
    tasks: int
    rounds: int
    rows: int
    listings: int


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(tasks=200, rounds=1, rows=20_000, listings=10),
    "usual": Effort(tasks=2_000, rounds=3, rows=1_000_000, listings=40),
    "full": Effort(tasks=5_000, rounds=3, rows=1_000_000, listings=100),
}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    yield f"history: {effort.tasks:,} tasks that do nothing; times are of one task", kept(effort)
    yield f"listing {effort.rows:,} runs on PostgreSQL; times are the 95th percentile", listed(effort)


def kept(effort: Effort) -> Iterator[Answer | NotMeasured]:
    try:
        with PostgresServer() as database, RedisServer() as broker, RedisServer() as locks:
            open_ledger(database.url).schema.upgrade()
            with bench_app(broker, locks) as (place, app):

                def measure() -> list[Answer]:
                    samples: dict[str, list[float]] = {"on": [], "off": []}
                    for number in range(effort.rounds):
                        for name in sorted(samples, reverse=bool(number % 2)):
                            queue = fill(app, "ours", effort.tasks)
                            more = {"LEDGER": database.url} if name == "on" else {}
                            took = drain(broker, place, queue, "prefork -c2", effort.tasks, **more)
                            samples[name].append(took)
                    return [answer(promised(promises.HISTORY, "on", "off"), samples)]

                yield from until_kept(measure, repeats=1 if effort.rounds > 1 else 0)
    except ServerMissing as missing:
        yield NotMeasured("history", str(missing))


def listed(effort: Effort) -> Iterator[Answer | NotMeasured]:
    try:
        with PostgresServer() as database:
            ledger = open_ledger(database.url, prefix=PREFIX, timeout=timedelta(minutes=10))
            ledger.schema.upgrade()
            ledger.write(lambda connection: connection.execute(sa.text(FILL), {"rows": effort.rows}))
            with ledger.database.engine.connect() as connection:
                connection.execution_options(isolation_level="AUTOCOMMIT")
                connection.execute(sa.text("VACUUM ANALYZE singleton_runs"))
            for name, ask in questions(Queries(ledger)).items():
                yield against_bound(promises.LISTINGS[name], [percentile(ask, effort.listings)])
                ensure_indexed(ledger, name, ask)
    except ServerMissing as missing:
        yield NotMeasured("listing", str(missing))


def questions(queries: Queries) -> dict[str, Callable[[], Any]]:
    now = datetime.now(UTC)
    deep = queries.runs(Filter(until=now - timedelta(days=5))).next
    entries = [f"entry-{number}" for number in range(100)]
    return {
        "the newest": queries.runs,
        "a page in the middle": lambda: queries.runs(Filter(after=deep)),
        "of an entry": lambda: queries.runs(Filter(entry="entry-7")),
        "failed ones of a task": lambda: queries.runs(Filter(task="task-0", statuses=[Status.FAILED])),
        "missed": queries.missed,
        "slowest": queries.slowest,
        "the last 20 of each of 100 entries": lambda: queries.last_of(entries, 20),
        "one run": lambda: queries.run("run-77"),
    }


def percentile(ask: Callable[[], Any], times: int) -> float:
    ask()
    took = []
    # As `timeit` does: what Python takes to look through all of this process is none of the query's.
    gc.disable()
    try:
        for _ in range(times):
            began = time.perf_counter()
            ask()
            took.append(time.perf_counter() - began)
    finally:
        gc.enable()
    return statistics.quantiles(took, n=20)[-1]


def ensure_indexed(ledger: Ledger, name: str, ask: Callable[[], Any]) -> None:
    """By what the server says: none of these reads the whole table."""
    statement, parameters = asked(ledger, ask)
    with ledger.database.engine.connect() as connection:
        plan = "\n".join(connection.exec_driver_sql(f"EXPLAIN {statement}", parameters).scalars())
    if "Seq Scan" in plan:
        raise AssertionError(f"{name} reads the whole table:\n{plan}")
    used = re.findall(r" (?:using|on) ((?:ix|uq)_\w+)", plan)
    print(f"    {name}: by {', '.join(sorted(set(used)))}")


def asked(ledger: Ledger, ask: Callable[[], Any]) -> tuple[str, Any]:
    """The statement that a question becomes, as the driver gets it."""
    seen: list[tuple[str, Any]] = []

    def note(_c: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        seen.append((statement, parameters))

    sa.event.listen(ledger.database.engine, "before_cursor_execute", note)
    try:
        ask()
    finally:
        sa.event.remove(ledger.database.engine, "before_cursor_execute", note)
    return next(each for each in seen if "singleton_runs" in each[0])
