"""The time in the store, between two times that it was heard."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from celery_singleton_lock.core.clock import Clock


@dataclass(slots=True)
class StoreClock:
    """The store's time, carried on by our own monotonic clock between two heartbeats."""

    clock: Clock
    at: datetime | None = None
    heard: float = 0.0

    def hear(self, now: datetime) -> None:
        # As of receipt: it was a little later than that in the store already, so we are never early.
        self.at, self.heard = now, self.clock()

    def now(self) -> datetime:
        if self.at is None:
            raise RuntimeError("the store's time was not heard yet")
        return self.at + timedelta(seconds=self.clock() - self.heard)
