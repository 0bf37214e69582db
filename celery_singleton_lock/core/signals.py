"""What the package tells other code. A failing receiver never breaks a run."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final

logger = logging.getLogger(__name__)

Receiver = Callable[..., Any]


class Signal:
    """Connect receivers, as a decorator or by a call; each is called with keyword arguments."""

    def __init__(self, name: str, doc: str) -> None:
        self.name: Final = name
        self.__doc__ = doc
        self._receivers: list[Receiver] = []
        self._lock = threading.Lock()

    def connect(self, receiver: Receiver) -> Receiver:
        """Call `receiver` from now on; once, however often it is connected."""
        with self._lock:
            if receiver not in self._receivers:
                self._receivers = [*self._receivers, receiver]
        return receiver

    def disconnect(self, receiver: Receiver) -> None:
        """Call `receiver` no more."""
        with self._lock:
            self._receivers = [each for each in self._receivers if each != receiver]

    def send(self, **facts: Any) -> None:
        """Call every receiver; what one raises is logged, and nobody else suffers."""
        for receiver in self._receivers:
            try:
                receiver(**facts)
            except Exception:
                logger.exception("signal_receiver_failed signal=%s", self.name)

    def __repr__(self) -> str:
        return f"<Signal {self.name}>"


slot_missed: Final = Signal(
    "slot_missed",
    'A slot was not published, and will not be. Facts: ``entry``, ``slot``, ``reason`` ("too old": '
    'the catch-up rule says so; "refused": its arguments cannot be sent).',
)

run_skipped: Final = Signal(
    "run_skipped",
    "A run was not executed, and will not be. Facts: ``task`` (its name), ``run`` (its id), ``reason`` "
    '("overlap", "waited too long" or "duplicate") and ``by``: who was in its way.',
)

run_retrying: Final = Signal(
    "run_retrying",
    "A run failed and will be tried again. Facts: ``task``, ``run``, ``attempt`` (which failed), "
    "``delay`` (a timedelta) and ``exception``, which may be None.",
)

lease_lost: Final = Signal(
    "lease_lost",
    "A run may have lost its lease while it ran: somebody else may be at work. Facts: ``task``, "
    "``run``, ``key``, ``fence``. Sent from a thread of its own.",
)

lease_overdue: Final = Signal(
    "lease_overdue",
    "A run takes longer than its ``expect_within``. Facts: ``task``, ``run``, ``expected`` "
    "(a timedelta). Sent once a run, from a thread of its own.",
)

run_dead_lettered: Final = Signal(
    "run_dead_lettered",
    "A message was put among the dead letters, where it stays until somebody replays or purges it. "
    "Facts: ``letter`` (a `Letter`: its id, reason, run_id, task, exception, attempts and so on).",
)
