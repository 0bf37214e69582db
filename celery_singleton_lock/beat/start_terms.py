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
    """None where nothing can be told: of tasks that leave no record, or may be executed, fail or be
    joined to an equal call without one, and where it is not plain when a run expires."""
    task = app.tasks.get(entry.task)
    ours = getattr(task, "singleton_options", None)
    if ours is None or ours.store_down(settings) != "wait" or ours.on_duplicate is not None:
        return None
    options = entry.options
    expires = options.get("expires", task.expires)
    if "eta" in options or not _is_plain(expires):
        return None
    is_moment = isinstance(expires, datetime)
    return StartTerms(
        entry.task,
        delay=_span(options.get("countdown") or 0),
        life=None if expires is None or is_moment else _span(expires),
        end=expires if is_moment else None,
    )


def _is_plain(expires: object) -> bool:
    if isinstance(expires, datetime):
        return expires.tzinfo is not None
    return expires is None or isinstance(expires, int | float | timedelta)


def _span(seconds: float | timedelta) -> timedelta:
    return seconds if isinstance(seconds, timedelta) else timedelta(seconds=float(seconds))
