"""A schedule with one slot."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from celery.schedules import BaseSchedule, schedstate

from .moments import checked


class once(BaseSchedule):  # type: ignore[misc] # noqa: N801 - beside crontab, schedule and solar
    """Due at one time: ``"schedule": once(datetime(2027, 1, 1, tzinfo=UTC))``."""

    def __init__(self, at: Any, nowfun: Any = None, app: Any = None) -> None:
        super().__init__(nowfun=nowfun, app=app)
        self.at: datetime = checked("the time of once,", at)

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Time until the slot; a long time, once it was run."""
        return timedelta(days=365) if last_run_at >= self.at else self.at - self.now()

    def is_due(self, last_run_at: datetime) -> schedstate:
        wait = self.remaining_estimate(last_run_at).total_seconds()
        return schedstate(wait <= 0, max(wait, 60.0 if wait <= 0 else 0.0))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, once) and self.at == other.at

    def __hash__(self) -> int:
        return hash(self.at)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.at,)

    def __repr__(self) -> str:
        return f"<once: {self.at.isoformat()}>"
