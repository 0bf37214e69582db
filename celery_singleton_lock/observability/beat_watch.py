"""Sees to it that a beat is seen: whether its ticks end, and whether they reach what they need."""

from __future__ import annotations

import time
import weakref
from typing import Any, Final

from celery.signals import beat_init

from celery_singleton_lock.settings import Settings

from . import log_level
from .health import Check, Pulse
from .replica import Replica, replica_of


class BeatWatch:
    """Told of every tick. Does next to nothing unless ``singleton_http`` is set, and no I/O before the
    first tick: schedulers are made for a banner, too."""

    def __init__(self, app: Any, settings: Settings, why_not_ready: Check) -> None:
        self._app = app
        self._settings = settings
        self._why_not_ready = why_not_ready
        self._pulse = Pulse("the tick of beat", settings.stuck_after.total_seconds())
        self._replica: Replica | None = None
        self._has_begun = False

    def tick_begins(self) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._begin()
        self._beat(0.0)

    def tick_ended(self, wait_s: float) -> None:
        self._beat(wait_s)
        if self._replica is not None and self._replica.metrics is not None:
            from .metrics.catalogue import LAST_TICK

            self._replica.metrics.counts.set(LAST_TICK, to=time.time())

    def _beat(self, next_in_s: float) -> None:
        self._pulse.beat(next_in_s)
        if self._replica is not None and self._replica.inner_beat is not None:
            self._replica.inner_beat.tell(next_in_s, self._why_not_ready())

    def end(self) -> None:
        """Called twice by a beat that ends."""
        self._pulse.rest()
        if self._replica is not None:
            self._replica.end("beat")

    def _begin(self) -> None:
        _hear_of_log_level()
        if self._settings.http is None:
            return
        self._replica = replica = replica_of(self._app)
        if replica is not None and replica.inner_beat is None:
            replica.health.alive_if("tick", self._pulse.why_stuck)
            replica.health.ready_if("beat", self._why_not_ready)
            replica.begin("beat")


@beat_init.connect(weak=False, dispatch_uid=__name__)  # type: ignore[untyped-decorator]
def _remember(sender: Any, **_: Any) -> None:
    _services[:] = [weakref.ref(sender)]


_services: Final[list[weakref.ref[Any]]] = []


def _hear_of_log_level() -> None:
    """Celery's beat answers a ping, if it is told to, and nothing else: its mailbox has no registry for
    commands, and is made after it says that it begins."""
    service = _services[0]() if _services else None
    mailbox = getattr(service, "_pidbox", None)
    if mailbox is not None:
        mailbox.node.handlers[log_level.COMMAND] = log_level.set_level
