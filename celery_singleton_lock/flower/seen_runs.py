"""Runs as Flower sees them in the events of workers, since it was started. For its event loop only."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Final

from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.worker.task import SingletonTask

from .history import LEASE_LOST, Bucket, Found, Query, RunSeen

STATUS_OF: Final = {
    "PENDING": "waiting",
    "RECEIVED": "waiting",
    "STARTED": "running",
    "SUCCESS": "succeeded",
    "FAILURE": "failed",
    "RETRY": "retrying",
    "REVOKED": "revoked",
    "REJECTED": "failed",
    "SKIPPED": "skipped",
    "DEAD-LETTERED": "dead",
    "LEASE-LOST": "lost",
}
_ENDED: Final = {"succeeded", "failed", "revoked", "skipped", "dead", "lost"}


class SeenRuns:
    """Flower keeps its tasks in no order of ours: they are put in order once for all who look, and not
    so often that the event loop had nothing else to do."""

    FRESH_FOR_S: Final = 0.5
    REST_PER_WORK: Final = 20

    def __init__(self, flower: Any) -> None:
        self._events = flower.events
        self._app = flower.capp
        self._since = datetime.now(UTC)
        self._good_until = 0.0
        self._newest_first: list[Any] = []
        self._of_entry: dict[str, list[Any]] = {}

    def about(self) -> str:
        oldest = self._newest_first[-1].timestamp if self._newest_first else None
        since = min(self._since, _moment(oldest) or self._since)
        return (
            f"Runs are those that Flower saw itself, since {since:%Y-%m-%d %H:%M} UTC. Set "
            "singleton_database_url for a history that outlives it."
        )

    async def latest(self, entries: Sequence[str], each: int) -> Mapping[str, Sequence[RunSeen]]:
        self._look()
        runs = {}
        for entry in entries:
            tasks = self._of_entry.get(entry, ())[:each]
            runs[entry] = [as_run(task) for task in reversed(tasks)]
        return runs

    async def find(self, query: Query) -> Found:
        self._look()
        tasks = self._of_entry.get(query.entry, []) if query.entry else self._newest_first
        if query.since is not None:
            since = query.since.timestamp()
            # They are in order: what is older is not even looked at.
            tasks = list(takewhile(lambda task: _time_of(task) >= since, tasks))
        search = query.search.lower()
        fits = [task for task in tasks if _fits(task, query.status, search)]
        part = islice(fits, query.offset, query.offset + query.limit)
        return Found([as_run(task) for task in part], len(fits))

    async def contention(self, since: datetime, until: datetime, buckets: int) -> Sequence[Bucket]:
        self._look()
        width = (until - since) / buckets
        begins = [since + number * width for number in range(buckets)]
        started, skipped = Counter[int](), defaultdict[int, Counter[str]](Counter)
        for task in self._newest_first:
            moment = datetime.fromtimestamp(_time_of(task), UTC)
            if moment < since:
                break
            if moment <= until:
                at = bisect_right(begins, moment) - 1
                if task.state == "SKIPPED":
                    skipped[at][str(getattr(task, "reason", "") or "overlap")] += 1
                elif task.started:
                    started[at] += 1
        return [Bucket(begin, started[number], skipped[number]) for number, begin in enumerate(begins)]

    def _look(self) -> None:
        began = time.monotonic()
        if began < self._good_until:
            return
        ours = {name for name, task in self._app.tasks.items() if isinstance(task, SingletonTask)}
        tasks = [
            task
            for task in self._events.state.tasks.data.values()
            if task.name in ours or getattr(task, "entry", None)
        ]
        tasks.sort(key=_time_of, reverse=True)
        of_entry: dict[str, list[Any]] = defaultdict(list)
        for task in tasks:
            if entry := getattr(task, "entry", None):
                of_entry[entry].append(task)
        self._newest_first, self._of_entry = tasks, dict(of_entry)
        now = time.monotonic()
        self._good_until = now + max(self.FRESH_FOR_S, self.REST_PER_WORK * (now - began))


def as_run(task: Any) -> RunSeen:
    """Of a task as Celery's event state has it."""
    status = STATUS_OF.get(task.state, "waiting")
    seen = _moment(task.timestamp or task.received) or datetime.fromtimestamp(0, UTC)
    slot = _slot(getattr(task, "slot", None))
    started, ended = _moment(task.started), None
    if status in _ENDED:
        ended = _moment(task.succeeded or task.failed or task.revoked or task.timestamp)
        if started is not None and task.runtime is not None:
            # As the worker measured it: clocks differ, and events wait to be sent.
            ended = started + timedelta(seconds=task.runtime)
    return RunSeen(
        id=task.uuid,
        task=task.name or "",
        entry=getattr(task, "entry", None),
        slot=slot,
        status=status,
        worker=task.worker.hostname if task.worker else None,
        attempt=(task.retries or 0) + 1,
        started=started,
        ended=ended,
        seen=seen,
        error=_error(task) if status in ("failed", "dead", "retrying") else None,
        reason=_reason(task, status),
        lag_s=_lag_s(task, slot, started),
    )


def _error(task: Any) -> str | None:
    """Celery's events have it as it was raised, with the URLs that it quotes."""
    return None if task.exception is None else redact(str(task.exception))


def _lag_s(task: Any, slot: datetime | None, started: datetime | None) -> float | None:
    # Of a retry nobody remembers when the first attempt began.
    if slot is None or started is None or task.retries:
        return None
    return max(0.0, (started - slot).total_seconds())


def _reason(task: Any, status: str) -> str | None:
    if status == "skipped":
        return getattr(task, "reason", None)
    return LEASE_LOST if _was_lost(task) else None


def _was_lost(task: Any) -> bool:
    """What an event said stays with the task, whatever its state is now."""
    return bool(getattr(task, "lost_by", None))


def _fits(task: Any, status: str, search: str) -> bool:
    if status == "lost":
        if not _was_lost(task):
            return False
    elif status and STATUS_OF.get(task.state, "waiting") != status:
        return False
    if not search:
        return True
    worker = task.worker.hostname if task.worker else ""
    texts = (task.uuid, task.name or "", getattr(task, "entry", None) or "", worker)
    return any(search in text.lower() for text in texts)


def _time_of(task: Any) -> float:
    return float(task.started or task.received or task.timestamp or 0)


def _moment(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _slot(text: object) -> datetime | None:
    try:
        return datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
