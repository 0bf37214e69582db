"""`sharded`: one entry of the schedule for each part of the work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.settings.values import read_count


def sharded(
    entry: str,
    task: Any,
    shards: int = 8,
    *,
    schedule: Any,
    kwargs: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, dict[str, Any]]:
    """Entries for ``beat_schedule``, one a shard. `task`, a task or its name, is called with ``shard``
    (from 0) and ``shards`` beside `kwargs`; so each has a lock of its own, and they run beside each
    other, each once. All else is as in an entry: `args`, `options`, `catch_up`, `jitter` and so on.

    ::

        app.conf.beat_schedule = {
            "report": {...},
            **sharded("drain-orders", drain_orders, shards=8, schedule=5.0),
        }
    """
    read_count(f"entry {entry!r}: shards", shards)
    name = task if isinstance(task, str) else task.name
    given = dict(kwargs or {})
    if taken := given.keys() & {"shard", "shards"}:
        raise ConfigurationError(f"entry {entry!r}: {', '.join(sorted(taken))} is given to each shard")
    _check_lock(entry, task)
    return {
        f"{entry}:{shard}": {
            **options,
            "task": name,
            "schedule": schedule,
            "kwargs": {**given, "shard": shard, "shards": shards},
        }
        for shard in range(shards)
    }


def _check_lock(entry: str, task: Any) -> None:
    unique_on = getattr(task, "unique_on", None)
    if unique_on is not None and "shard" not in unique_on and not getattr(task, "lock_key", None):
        raise ConfigurationError(
            f"entry {entry!r}: with unique_on={unique_on!r} all shards have one lock: add 'shard' to it"
        )
