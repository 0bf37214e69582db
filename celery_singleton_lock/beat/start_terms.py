"""When the runs of an entry may be started, and whether one can tell that they were."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from celery_singleton_lock.settings import Settings


@dataclass(frozen=True, slots=True)
class StartTerms:
    task: str
    delay: timedelta = timedelta(0)
    """After they are published."""
    life: timedelta | None = None
    """From the slot on."""
    end: datetime | None = None

    def end_of(self, slot: datetime) -> datetime | None:
        """When the run of `slot` expires."""
        return self.end if self.life is None else slot + self.life


def terms_of(entry: Any, app: Any, settings: Settings) -> StartTerms | None:
    """None for tasks that leave no record, or may be executed without one."""
    task = app.tasks.get(entry.task)
    ours = getattr(task, "singleton_options", None)
    options = entry.options
    if ours is None or ours.store_down(settings) == "run" or "eta" in options:
        return None
    expires = options.get("expires", task.expires)
    is_moment = isinstance(expires, datetime)
    return StartTerms(
        entry.task,
        delay=_span(options.get("countdown") or 0),
        life=None if expires is None or is_moment else _span(expires),
        end=expires if is_moment else None,
    )


def _span(seconds: float | timedelta) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=seconds)
