"""Flower's own page of metrics, with what it knows of singleton runs."""

from __future__ import annotations

from asyncio import gather
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from flower.views.monitor import Metrics
from prometheus_client import CollectorRegistry, generate_latest

from celery_singleton_lock.core.errors import SingletonError
from celery_singleton_lock.observability.metrics.counts import Rows
from celery_singleton_lock.observability.metrics.exposition import SingletonCollector

from .asking import Snapshot
from .catalogue import ENTRIES, METRICS, PREFIX, STORE_UP
from .desk import ScheduleSeen, desk_of
from .heard import CountedEvents
from .schedule import is_late

PATIENCE_S: Final = 3.0
"""A scrape has no more than 10 seconds by default."""


class MetricsPage(Metrics):  # type: ignore[misc]
    """As open as Flower's own is."""

    async def get(self) -> None:
        await super().get()
        self.write(await page_of(self.application))


async def page_of(flower: Any) -> bytes:
    """In the format of Flower's page, which it is a part of. Whoever is away is left out."""
    rows: Rows = {}
    if isinstance(flower.events, CountedEvents):
        rows |= flower.events.heard.counts.read()
    rows |= await _looked_up(flower)
    registry = CollectorRegistry()
    registry.register(SingletonCollector(lambda: _named(rows), METRICS))
    return generate_latest(registry)


async def _looked_up(flower: Any) -> Rows:
    numbers, schedule = await gather(
        _or_nothing(lambda: desk_of(flower).numbers), _or_nothing(lambda: desk_of(flower).schedule)
    )
    rows: Rows = dict(numbers or {})
    rows[STORE_UP.name, (), ""] = float(schedule is not None)
    return rows if schedule is None else rows | _entries(schedule)


async def _or_nothing(snapshot: Callable[[], Snapshot[Any]]) -> Any:
    try:
        return await snapshot().get(PATIENCE_S)
    except SingletonError:
        return None


def _entries(seen: ScheduleSeen) -> Rows:
    states = Counter({"on time": 0, "late": 0, "paused": 0})
    for entry in seen.entries:
        states["paused" if entry.is_paused else "late" if is_late(entry, seen.now) else "on time"] += 1
    return {(ENTRIES.name, (state,), ""): float(count) for state, count in states.items()}


def _named(rows: Rows) -> Rows:
    return {(PREFIX + name, labels, part): value for (name, labels, part), value in rows.items()}
