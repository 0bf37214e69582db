"""The health of a beat inside a worker (``celery worker -B``), which is a process of its own: it writes
down how it is where the worker can read it, and the worker serves it."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable
from typing import Any, Final

from celery_singleton_lock.core.clock import boottime

from .health import Health, Pulse

SIZE: Final = 4096
_HEAD: Final = struct.Struct("QI")
"""How often it was written, odd while it is; and how long what follows is."""
_TRIES: Final = 100


class Board:
    """A text, shared with a process that is forked after this was made. One writes, others read."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, SIZE)

    def write(self, text: str) -> None:
        data = text.encode(errors="replace")[: SIZE - _HEAD.size]
        number, length = _HEAD.unpack_from(self._shared)
        _HEAD.pack_into(self._shared, 0, number + 1, length)
        self._shared[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._shared, 0, number + 2, len(data))

    def read(self) -> str:
        """Empty before anything was written, and where the writer died while it wrote."""
        for _ in range(_TRIES):
            number, length = _HEAD.unpack_from(self._shared)
            data = self._shared[_HEAD.size : _HEAD.size + length]
            if number % 2 == 0 and _HEAD.unpack_from(self._shared)[0] == number:
                return data.decode(errors="replace")
        return ""


class InnerBeat:
    """Made by the worker, before it forks."""

    LONGEST_REASON: Final = 500

    def __init__(self, process: Callable[[], Any], stuck_after_s: float) -> None:
        """`process`: that of the beat; None before it is made."""
        self._process = process
        self._pulse = Pulse("the tick of the beat inside it", stuck_after_s)
        self._board = Board()

    # In the process of the beat

    def tell(self, next_in_s: float, why_not_ready: str | None) -> None:
        """It comes round, and is expected to do so again after so many seconds."""
        why_not = None if why_not_ready is None else why_not_ready[: self.LONGEST_REASON]
        self._board.write(json.dumps([boottime() + next_in_s, why_not]))

    # In that of the worker

    def report_to(self, health: Health) -> None:
        health.alive_if("beat ended", self._why_ended)
        health.alive_if("tick", self._why_stuck)
        health.ready_if("beat", self._why_not_ready)

    def _why_ended(self) -> str | None:
        process = self._process()
        # Celery does not start it again.
        if process is not None and process.pid and not process.is_alive():
            return "the beat inside it has ended"
        return None

    def _why_stuck(self) -> str | None:
        told = self._board.read()
        if told:
            self._pulse.expect_at(json.loads(told)[0])
        return self._pulse.why_stuck()

    def _why_not_ready(self) -> str | None:
        told = self._board.read()
        why_not = json.loads(told)[1] if told else "it has not ticked yet"
        return None if why_not is None else f"the beat inside it is not ready: {why_not}"
