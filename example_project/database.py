"""The database of the shop: SQLite, in a file that all of its processes share."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

TABLES = """
    CREATE TABLE work (at, worker, what, about, run, attempt, fence);
    CREATE TABLE export (day PRIMARY KEY, fence NOT NULL);
    CREATE TABLE fact (name PRIMARY KEY);
"""


class Work(NamedTuple):
    """A row of the journal: what a worker says it did. One more for each time that it is done."""

    at: float
    worker: str
    what: str
    about: str
    run: str
    attempt: int
    fence: int


@contextmanager
def connected() -> Iterator[sqlite3.Connection]:
    """One transaction."""
    path = os.environ.get("SHOP_DATABASE", "shop.sqlite")
    database = sqlite3.connect(path, timeout=30)
    try:
        with database:
            yield database
    finally:
        database.close()


def create() -> None:
    with connected() as database:
        database.executescript("PRAGMA journal_mode = WAL;" + TABLES)


def note(task: Any, what: str, about: str) -> None:
    run, (worker, _, _) = task.current_run, task.request.hostname.partition("@")
    row = Work(time.time(), worker, what, about, run.id, run.attempt, run.fence)
    with connected() as database:
        database.execute("INSERT INTO work VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def journal() -> list[Work]:
    with connected() as database:
        return [Work(*row) for row in database.execute("SELECT * FROM work ORDER BY rowid")]


def write_export(day: str, fence: int) -> bool:
    """False: somebody with a larger fence has written it already."""
    with connected() as database:
        written = database.execute(
            "INSERT INTO export VALUES (:day, :fence)"
            " ON CONFLICT (day) DO UPDATE SET fence = :fence WHERE fence < :fence",
            {"day": day, "fence": fence},
        )
    return written.rowcount == 1


def fence_of_export(day: str) -> int:
    with connected() as database:
        [fence] = database.execute("SELECT fence FROM export WHERE day = ?", (day,)).fetchone()
    return int(fence)


def is_set(fact: str) -> bool:
    with connected() as database:
        return database.execute("SELECT 1 FROM fact WHERE name = ?", (fact,)).fetchone() is not None


def set_fact(fact: str) -> None:
    with connected() as database:
        database.execute("INSERT OR IGNORE INTO fact VALUES (?)", (fact,))
