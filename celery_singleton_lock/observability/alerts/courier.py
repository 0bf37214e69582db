"""Brings alerts to where they are to go, in a thread of its own. Nobody waits for it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from .alert import Alert

logger = logging.getLogger(__name__)

MOST_WAITING: Final = 1000
WINDOW_S: Final = 60.0
PAUSES_S: Final = (1.0, 5.0, 15.0)
"""Before the second try, the third and the last."""
GOODBYE_S: Final = 3.0

Deliver = Callable[[Alert], None]
"""Raises what went wrong; `Refused` where trying again is of no use."""


class Refused(Exception):
    """The other side will not have it, whoever tries again."""


class Courier:
    """Of one kind of alert one is sent at once; those that follow within a minute are sent as one, with
    their number. Usable in a forked child, which has a thread of its own."""

    def __init__(
        self,
        deliveries: Sequence[tuple[str, Deliver]],
        *,
        window_s: float = WINDOW_S,
        pauses_s: Sequence[float] = PAUSES_S,
    ) -> None:
        """Each delivery has a name, for the log."""
        self._deliveries = deliveries
        self._window_s = window_s
        self._pauses_s = pauses_s
        self._begin()
        os.register_at_fork(after_in_child=self._begin)
        atexit.register(self.flush)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Alert] = deque()
        self._held: dict[str, list[Alert]] = {}
        self._next_at: dict[str, float] = {}
        self._dropped = 0
        self._is_busy = False
        self._is_leaving = False
        self._thread: threading.Thread | None = None

    def send(self, alert: Alert) -> None:
        """Returns at once. What there is no room for is dropped, and counted in the log."""
        with self._changed:
            if len(self._waiting) >= MOST_WAITING:
                self._dropped += 1
                return
            self._waiting.append(alert)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="singleton-alerts", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float = GOODBYE_S) -> bool:
        """Send what waits, without pauses; False: not all of it was sent in that time."""
        with self._changed:
            if self._thread is None:
                return True
            self._is_leaving = True
            self._changed.notify_all()
            return self._changed.wait_for(self._is_idle, timeout_s)

    def _is_idle(self) -> bool:
        return not self._waiting and not self._held and not self._is_busy

    # In the thread

    def _run(self) -> None:
        while True:
            alert = self._next()
            for name, deliver in self._deliveries:
                self._try(name, deliver, alert)

    def _next(self) -> Alert:
        with self._changed:
            self._is_busy = False
            while True:
                self._changed.notify_all()
                self._sort_in()
                due = self._take_due()
                if due is not None:
                    self._is_busy = True
                    return due
                until = min((self._next_at[kind] for kind in self._held), default=None)
                self._changed.wait(None if until is None else max(0.0, until - time.monotonic()))

    def _sort_in(self) -> None:
        if self._dropped:
            logger.warning("alerts_dropped count=%d: more than can be sent", self._dropped)
            self._dropped = 0
        while self._waiting:
            alert = self._waiting.popleft()
            # That it is over is news of its own.
            self._held.setdefault(f"{alert.kind}:{alert.is_over}", []).append(alert)

    def _take_due(self) -> Alert | None:
        now = time.monotonic()
        for kind, alerts in self._held.items():
            if self._is_leaving or now >= self._next_at.setdefault(kind, now):
                self._next_at[kind] = now + self._window_s
                del self._held[kind]
                last = alerts[-1]
                return last if len(alerts) == 1 else last.with_more(len(alerts) - 1)
        return None

    def _try(self, name: str, deliver: Deliver, alert: Alert) -> None:
        for pause in (*self._pauses_s, None):
            try:
                deliver(alert)
            except Exception as error:  # noqa: BLE001 - whatever it was, it must end here
                # Not its text, which may quote the address, and that may be a secret.
                reason = str(error) if isinstance(error, Refused) else type(error).__name__
                if pause is None or isinstance(error, Refused) or self._is_leaving:
                    logger.error(
                        "alert_not_sent by=%s kind=%s about=%s reason=%s",
                        name, alert.kind, alert.about, reason,
                    )  # fmt: skip
                    return
                with self._changed:
                    self._changed.wait_for(lambda: self._is_leaving, pause)
            else:
                logger.debug("alert_sent by=%s kind=%s about=%s", name, alert.kind, alert.about)
                return
