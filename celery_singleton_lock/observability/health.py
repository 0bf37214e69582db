"""Whether a replica is alive, and whether it is ready; and if not, why."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, Generic, TypeVar

from celery_singleton_lock.core.clock import boottime

from .http import Answer

Check = Callable[[], str | None]
"""The reason why not; None: all is well. Must not wait long."""
Result = TypeVar("Result")


class Health:
    """Alive: restarting it would not help. Ready: it does its work now. Waiting for a store or a broker
    that is away is alive, and not ready."""

    def __init__(self) -> None:
        self._alive: dict[str, Check] = {}
        self._ready: dict[str, Check] = {}

    def alive_if(self, name: str, check: Check) -> None:
        self._alive[name] = check

    def ready_if(self, name: str, check: Check) -> None:
        self._ready[name] = check

    def why_not_alive(self) -> list[str]:
        return _reasons(self._alive)

    def why_not_ready(self) -> list[str]:
        return [*self.why_not_alive(), *_reasons(self._ready)]

    # Pages

    def livez(self, _accept: str) -> Answer:
        return _page("alive", self.why_not_alive())

    def readyz(self, _accept: str) -> Answer:
        return _page("ready", self.why_not_ready())


class Pulse:
    """Something that comes round again and again, unless it is stuck."""

    def __init__(self, what: str, stuck_after_s: float, clock: Callable[[], float] = boottime) -> None:
        self._what = what
        self._stuck_after_s = stuck_after_s
        self._clock = clock
        self._last: float | None = None

    def beat(self, next_in_s: float = 0.0) -> None:
        """It came round, and is expected to do so again after so many seconds."""
        self.expect_at(self._clock() + next_in_s)

    def expect_at(self, moment: float) -> None:
        """It is expected to come round then, by the clock of the pulse."""
        self._last = moment

    def rest(self) -> None:
        """It is not expected to come round until it does."""
        self._last = None

    def why_stuck(self) -> str | None:
        if self._last is None:
            return None
        late = self._clock() - self._last
        return f"{self._what} has been stuck for {late:.0f} s" if late > self._stuck_after_s else None


class Remembered(Generic[Result]):
    """The answer to a question that costs something, for a few seconds; one asks, others wait."""

    def __init__(self, ask: Callable[[], Result], for_s: float) -> None:
        self._ask = ask
        self._for_s = for_s
        self._asking: Final = threading.Lock()
        self._answer: tuple[float, Result] | None = None

    def __call__(self) -> Result:
        with self._asking:
            if self._answer is None or time.monotonic() - self._answer[0] > self._for_s:
                result = self._ask()
                self._answer = (time.monotonic(), result)
            return self._answer[1]


def _reasons(checks: dict[str, Check]) -> list[str]:
    return [reason for check in tuple(checks.values()) if (reason := check()) is not None]


def _page(what: str, reasons: list[str]) -> Answer:
    said: dict[str, Any] = {what: not reasons, "reasons": reasons}
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return Answer(status, "application/json", json.dumps(said).encode() + b"\n")
