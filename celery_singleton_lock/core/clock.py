"""The holder's clock: seconds that go on counting while the machine sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Final

Clock = Callable[[], float]
"""Returns seconds since an arbitrary start; never goes back."""


def _machine_clock() -> Clock:
    # time.monotonic stands still during a suspend on Linux, which would make a lease look younger
    # than it is to the store. CLOCK_BOOTTIME does not. (macOS counts sleep in CLOCK_MONOTONIC.)
    for name in ("CLOCK_BOOTTIME", "CLOCK_MONOTONIC"):
        clock_id = getattr(time, name, None)
        if clock_id is not None:
            return lambda: time.clock_gettime(clock_id)
    return time.monotonic


boottime: Clock = _machine_clock()


DRIFT: Final = 0.01
MOST_DRIFT: Final = 0.05
"""With more, two renewals and a store that is slow would not fit into one ttl."""


def drift_allowance(ttl: timedelta, rate: float = DRIFT) -> float:
    """Seconds by which two honest clocks may drift apart within `ttl`, and a little for rounding."""
    return ttl.total_seconds() * rate + 0.002
