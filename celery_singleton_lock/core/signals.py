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

run_dead_lettered: Final = Signal(
    "run_dead_lettered",
    "A message was put among the dead letters, where it stays until somebody replays or purges it. "
    "Facts: ``letter`` (a `Letter`: its id, reason, run_id, task, exception, attempts and so on).",
)
