"""A lease store inside one process: for tests and for eager mode."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from celery_singleton_lock.core.clock import Clock, boottime
from celery_singleton_lock.core.models import Record, Release

from . import rules
from .base import Watch
from .ruled import Item, Reply, RuledLeaseStore


def _wall_clock() -> int:
    return time.time_ns() // 1000


class MemoryLeaseStore(RuledLeaseStore):
    """Keeps its records in a dict. `wall_clock` is the store's clock, in µs since the epoch."""

    def __init__(self, *, clock: Clock = boottime, wall_clock: Callable[[], int] = _wall_clock) -> None:
        super().__init__(clock=clock)
        self._wall_clock = wall_clock
        self._rows: dict[str, rules.Row] = {}
        self._sweep_above = 1024
        self._changed = threading.Condition()
        self._changes = 0

    @property
    def name(self) -> str:
        return "memory://"

    def close(self) -> None:
        """Nothing to close: the records stay as long as the store."""

    def forget(self) -> None:
        """Lose all memory, as a server does that is restarted without its data."""
        with self._changed:
            self._rows.clear()
        self._notice_memory_loss()

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        written = super()._release(releases)
        self._wake()
        return written

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        taken = super()._force_release(key, who, why)
        self._wake()
        return taken

    def _scan(self, prefix: str) -> Iterator[Record]:
        with self._changed:
            keys = [key for key, row in self._rows.items() if key.startswith(prefix) and row.fence]
        return (record for record in self._peek(keys) if record)

    @contextmanager
    def watch(self, key: str) -> Iterator[Watch]:
        yield _ChangeWatch(self)

    def _apply(self, rule: rules.Rule[Item, Reply], items: Sequence[tuple[str, Item]]) -> list[Reply]:
        replies = []
        with self._changed:
            now = self._wall_clock()
            for key, item in items:
                before = self._rows.get(key, rules.BLANK)
                if before.kept_until <= now:
                    before = rules.BLANK
                after, reply = rule(before, item, now)
                if after is not before:
                    self._rows[key] = after
                replies.append(reply)
            self._sweep(now)
        return replies

    def _sweep(self, now: int) -> None:
        if len(self._rows) > self._sweep_above:
            self._rows = {key: row for key, row in self._rows.items() if row.kept_until > now}
            self._sweep_above = max(1024, 2 * len(self._rows))

    def _wake(self) -> None:
        with self._changed:
            self._changes += 1
            self._changed.notify_all()

    def _wait_for_change(self, seen: int, timeout: timedelta) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._changes != seen, timeout.total_seconds())
            return self._changes


class _ChangeWatch:
    def __init__(self, store: MemoryLeaseStore) -> None:
        self._store = store
        self._seen = store._changes

    def wait(self, timeout: timedelta) -> bool:
        before, self._seen = self._seen, self._store._wait_for_change(self._seen, timeout)
        return before != self._seen
