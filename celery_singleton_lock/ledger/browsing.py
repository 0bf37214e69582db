"""Questions of somebody who looks around in history: text is searched for, and pages have numbers.

Unlike those of `queries` they cost more the more there is to look at: ask for a bounded time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from .opening import Ledger
from .queries import COLUMNS, NEWEST_FIRST, Filter, PastRun, Queries
from .tables import RunRow


@dataclass(frozen=True, slots=True)
class Count:
    """How many runs, of those due from `at` on until the next, have this status, for this reason."""

    at: datetime
    status: str
    reason: str | None
    runs: int


def find(
    ledger: Ledger, which: Filter, search: str = "", *, skip: int = 0, limit: int = 50
) -> list[PastRun]:
    """Newest first. `search` is looked for in ids, tasks, entries and workers, in any case."""
    conditions = _conditions(ledger, which, search)
    query = sa.select(*COLUMNS).where(*conditions).order_by(*NEWEST_FIRST)
    return Queries(ledger).read(query.offset(skip).limit(limit))


def count(ledger: Ledger, which: Filter, search: str = "", *, at_most: int) -> int:
    """How many `find` would find; when there are more than `at_most`, that."""
    some = sa.select(RunRow.id).where(*_conditions(ledger, which, search)).limit(at_most)
    query = sa.select(sa.func.count()).select_from(some.subquery())
    return int(ledger.read(lambda connection: connection.scalar(query)) or 0)


def count_over_time(ledger: Ledger, since: datetime, until: datetime, parts: int) -> list[Count]:
    """In one pass over the time, part by part."""
    width = (until - since) / parts
    begins = [since + number * width for number in range(parts)]
    query = sa.union_all(*(_count_in(ledger, at, begin, width) for at, begin in enumerate(begins)))
    rows: Sequence[Any] = ledger.read(lambda connection: connection.execute(query).all())
    return [Count(begins[at], status, reason, runs) for at, status, reason, runs in rows]


def _count_in(
    ledger: Ledger, at: int, begin: datetime, width: timedelta
) -> sa.Select[int, str, str | None, int]:
    return (
        sa.select(sa.literal(at), RunRow.status, RunRow.reason, sa.func.count())
        .where(RunRow.prefix == ledger.prefix, RunRow.due_at >= begin, RunRow.due_at < begin + width)
        .group_by(RunRow.status, RunRow.reason)
    )


def _conditions(ledger: Ledger, which: Filter, search: str) -> Sequence[sa.ColumnElement[bool]]:
    conditions = [RunRow.prefix == ledger.prefix, *which.conditions()]
    if search:
        columns = (RunRow.run_id, RunRow.task, RunRow.entry, RunRow.worker)
        conditions.append(sa.or_(*(each.icontains(search, autoescape=True) for each in columns)))
    return conditions
