"""Bounded waits for something that happens in another process."""

from __future__ import annotations

import time
from collections.abc import Callable

_POLL_S = 0.02


def holds_within(timeout_s: float, condition: Callable[[], bool]) -> bool:
    """Whether ``condition`` became true in time; it is asked at least once."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
