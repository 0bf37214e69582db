"""A clock that stands still until a test moves it, and a lease store that goes by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from celery_singleton_lock.leases.memory import MemoryLeaseStore

_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class FakeClock:
    """Call it for the seconds, as a `Clock`; `now` is the time of day that goes with them."""

    def __init__(self, now: datetime = _NOON) -> None:
        self._began = now
        self._seconds = 0.0

    def __call__(self) -> float:
        return self._seconds

    @property
    def now(self) -> datetime:
        return self._began + timedelta(seconds=self._seconds)

    def advance(self, span: timedelta | float) -> None:
        """Let time pass: seconds, or a timedelta. It never goes back."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else span
        if seconds < 0:
            raise ValueError(f"time does not go back: {span}")
        self._seconds += seconds

    def open_store(self) -> MemoryLeaseStore:
        """A store in memory whose leases run out by this clock, for holder and store alike."""
        return MemoryLeaseStore(clock=self, wall_clock=lambda: round(self.now.timestamp() * 1_000_000))
