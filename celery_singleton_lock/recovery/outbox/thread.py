"""A relay in a thread of its own, for a process that has something else to do."""

from __future__ import annotations

import signal
import threading
from typing import Any, Final

from celery_singleton_lock.settings import Settings

from .relay import Relay

_LONGEST_GOODBYE_S: Final = 2.0


class RelayThread:
    """What it is at when it is stopped, or its process killed, is done by others."""

    def __init__(self, app: Any, settings: Settings) -> None:
        self._relay = Relay(app, settings)
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=self._relay.run, args=(self._stop,), name="outbox-relay", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let it end its batch, if that takes no longer than a moment."""
        self._stop.set()
        self._relay.wake()
        self._thread.join(_LONGEST_GOODBYE_S)


def relay_until_signal(app: Any, settings: Settings) -> None:
    """Until SIGTERM or SIGINT. To be called by the main thread of a process that does nothing else."""
    ends = {signal.SIGINT, signal.SIGTERM}
    thread = RelayThread(app, settings)
    # Before there are other threads, which inherit it: only this one is to be told.
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    thread.start()
    signal.sigwait(ends)
    thread.stop()
