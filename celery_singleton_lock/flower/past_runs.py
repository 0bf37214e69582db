"""Runs as the ledger remembers them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.browsing import count, count_over_time, find
from celery_singleton_lock.ledger.happenings import Status
from celery_singleton_lock.ledger.queries import Filter, PastRun, Queries

from .asking import Asking
from .history import LEASE_LOST, Bucket, Found, Query, RunSeen

MOST_COUNTED: Final = 10_000
_STATUS_OF: Final = {Status.DUE: "waiting", Status.PUBLISHED: "waiting"}
_BEGAN: Final = {"running", "retrying", "succeeded", "failed", "dead"}
_LOST: Final = "lost"


class PastRuns:
    def __init__(self, ledger: Ledger, asking: Asking) -> None:
        self._ledger = ledger
        self._asking = asking

    def about(self) -> str:
        return ""

    async def latest(self, entries: Sequence[str], each: int) -> Mapping[str, Sequence[RunSeen]]:
        found = await self._asking.ask(lambda: Queries(self._ledger).last_of(entries, each))
        return {entry: [as_run(run) for run in reversed(runs)] for entry, runs in found.items()}

    async def find(self, query: Query) -> Found:
        is_lost = query.status == _LOST
        statuses = [status for status in Status if query.status == shown_status(status)]
        if query.status and not statuses and not is_lost:
            return Found([], 0)
        which = Filter(
            entry=query.entry or None,
            statuses=statuses,
            ended_once=_LOST if is_lost else None,
            since=query.since,
        )

        def look() -> Found:
            found = find(self._ledger, which, query.search, skip=query.offset, limit=query.limit)
            known = query.offset + len(found)
            if len(found) == query.limit:
                known = count(self._ledger, which, query.search, at_most=MOST_COUNTED)
            return Found([as_run(run, was_lost=is_lost) for run in found], known)

        return await self._asking.ask(look)

    async def contention(self, since: datetime, until: datetime, buckets: int) -> Sequence[Bucket]:
        counts = await self._asking.ask(lambda: count_over_time(self._ledger, since, until, buckets))
        started = Counter[datetime]()
        skipped = defaultdict[datetime, Counter[str]](Counter)
        for each in counts:
            if each.reason == "ignored":
                continue  # by itself, not because of a lock
            if each.status == Status.SKIPPED:
                skipped[each.at][each.reason or "overlap"] += each.runs
            elif each.status in _BEGAN:
                started[each.at] += each.runs
        width = (until - since) / buckets
        begins = [since + number * width for number in range(buckets)]
        return [Bucket(begin, started[begin], skipped[begin]) for begin in begins]


def shown_status(status: Status) -> str:
    return _STATUS_OF.get(status, status.value)


def as_run(run: PastRun, *, was_lost: bool = False) -> RunSeen:
    started, ended = run.started_at, run.ended_at
    if ended is not None and run.duration_s is not None:
        # As the worker measured it; of several attempts, the last one.
        started = ended - timedelta(seconds=run.duration_s)
    return RunSeen(
        id=run.run_id,
        task=run.task or "",
        entry=run.entry,
        slot=run.slot,
        status=_LOST if run.reason == _LOST else shown_status(run.status),
        worker=run.worker,
        attempt=max(1, run.attempt),
        started=started,
        ended=ended,
        seen=ended or started or run.published_at or run.due_at,
        error=run.error,
        reason=LEASE_LOST if was_lost else _reason(run),
        lag_s=run.lag_s,
    )


def _reason(run: PastRun) -> str | None:
    return run.reason if run.status in (Status.SKIPPED, Status.MISSED) else None
