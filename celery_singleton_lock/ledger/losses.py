"""What history cannot keep: it is counted, and told where the rest of history is, once that can be."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

OnLost = Callable[[int], object]


@dataclass(frozen=True, slots=True)
class Gap:
    """So many facts of a process are not in history: ends of runs, or all that there was of some."""

    replica: str
    began_at: datetime
    ended_at: datetime
    facts: int

    @property
    def as_json(self) -> dict[str, Any]:
        times = {"began_at": self.began_at.isoformat(), "ended_at": self.ended_at.isoformat()}
        return asdict(self) | times


class Losses:
    """Of one process; any thread may count."""

    def __init__(self, on_lost: OnLost | None = None) -> None:
        self.total = 0
        self._on_lost = on_lost
        self._counting = threading.Lock()
        self._since: datetime | None = None
        self._untold = 0

    def add(self, facts: int) -> None:
        with self._counting:
            self.total += facts
            self._untold += facts
            self._since = self._since or datetime.now(UTC)
        if self._on_lost is not None:
            self._on_lost(facts)

    def take(self) -> list[Gap]:
        """What was lost since this was asked last: nothing, or one gap."""
        with self._counting:
            facts, since = self._untold, self._since
            self._untold, self._since = 0, None
        if since is None:
            return []
        return [Gap(f"{socket.gethostname()}:{os.getpid()}", since, datetime.now(UTC), facts)]
