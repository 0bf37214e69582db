"""Lets the end of a run be on its way to the store while its worker goes on.

To wait for that answer is a part of what a task costs that does nothing. Nothing is lost by not doing
so: the message of the run stays until the answer is there. Only for a pool that executes tasks in the
thread that also acknowledges their messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Endings:
    """Of one process. At most one is on its way; `settle` before a message is acknowledged."""

    def __init__(self) -> None:
        self._thread: int | None = None
        self._on_start: Callable[[], None] = _nothing
        self._last: Callable[[], None] | None = None

    def open(self, on_start: Callable[[], None]) -> None:
        """From now on, for this thread, which promises to call `settle` soon after each `on_start`."""
        self._thread = threading.get_ident()
        self._on_start = on_start

    def close(self) -> None:
        self._thread = None
        self.settle()

    @property
    def is_open(self) -> bool:
        return self._thread == threading.get_ident()

    def add(self, settle: Callable[[], None]) -> None:
        """The one before has arrived by now: whatever a thread asks for of a store is in order."""
        self.settle()
        self._last = settle
        self._on_start()

    def settle(self) -> None:
        last, self._last = self._last, None
        if last is not None:
            last()


def _nothing() -> None:
    """Nobody is there to be told."""
