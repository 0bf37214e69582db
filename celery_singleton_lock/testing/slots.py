"""One slot of the schedule, now: as beat would publish it, without a beat."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs

from celery_singleton_lock.beat.entries import Due
from celery_singleton_lock.beat.entry import SingletonEntry, grid_for
from celery_singleton_lock.beat.plan import run_id
from celery_singleton_lock.beat.publisher import Publisher
from celery_singleton_lock.core import headers as names
from celery_singleton_lock.core.errors import ConfigurationError


def run_slot(app: Any, entry: str, slot: datetime | None = None) -> Any:
    """Execute the task of `entry` in this process, without a broker; return its EagerResult.

    The task sees itself as the run of that slot: same id, `current_run.entry` and `current_run.slot`.
    `slot` None: the next one after now. A time at which the entry is not due is refused.
    """
    found, slot = _find(app, entry, slot)
    task = app.tasks[found.task]
    return task.apply(
        _evaluate_entry_args(found.args),
        _evaluate_entry_kwargs(found.kwargs),
        task_id=run_id(app.main or "", entry, slot),
        headers={names.ENTRY: entry, names.SLOT: slot.isoformat()},
    )


def publish_slot(app: Any, entry: str, slot: datetime | None = None) -> Any:
    """Publish what beat would for that slot, to the broker of `app`; return its AsyncResult.

    Publish it twice, and it has the same id. No position is touched: a beat that runs goes its way.
    """
    found, slot = _find(app, entry, slot)
    refused: list[Due] = []
    publisher = Publisher(app, lambda _: found, on_refused=refused.append)
    try:
        publisher.publish([Due(entry, slot)])
    finally:
        publisher.close()
    if refused:
        raise ConfigurationError(f"slot {slot} of entry {entry!r} cannot be published: see the log")
    return app.AsyncResult(run_id(app.main or "", entry, slot))


def _find(app: Any, entry: str, slot: datetime | None) -> tuple[SingletonEntry, datetime]:
    schedule: Mapping[str, Any] = app.conf.beat_schedule or {}
    if entry not in schedule:
        known = ", ".join(sorted(schedule)) or "none"
        raise ConfigurationError(f"beat_schedule has no entry {entry!r}; it has: {known}")
    found = SingletonEntry(**{**schedule[entry], "name": entry, "app": app})
    grid = grid_for(found)
    if slot is None:
        slot = grid.next(datetime.now(UTC))
        if slot is None:
            raise ConfigurationError(f"entry {entry!r} has no slot any more")
    elif slot.tzinfo is None:
        raise ConfigurationError(f"slot {slot} needs a time zone")
    elif (next_one := grid.next(slot - timedelta(microseconds=1))) != slot:
        raise ConfigurationError(f"entry {entry!r} is not due at {slot}; the next time is {next_one}")
    return found, slot
