"""Ends the leases of an execution from the worker's parent process, where the child cannot."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.errors import ConfigurationError, StoreUnavailable
from celery_singleton_lock.core.models import FINISHED, Granted, Lease, LeaseRequest, Park, Release

from .asking import ask_of
from .news import News
from .parts import parts_of
from .run import LETTER_DUE, Ask

logger = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 0.2
_AT_EXIT_S: Final = 2.0
_AT_ONCE: Final = timedelta(milliseconds=1)


class Closing:
    """The run is recorded before its message is acknowledged. Its other leases are freed when the child
    was seen to be gone, or was never there; otherwise they run out: it might still write.

    `outcome` None: nothing is recorded, and the next execution enters at once. `is_death`: the child
    died of itself, which is counted, as it is for a worker that nobody saw die.
    """

    def __init__(self, request: Any, outcome: str | None, *, is_death: bool = False) -> None:
        task = request.task
        self.is_death: Final = is_death
        self._parts = parts_of(request.app)
        self._outcome = outcome
        self._news = News(self._parts.listeners, task.name, request._context)
        self._consumer = task.singleton_consumer
        self._pid: int | None = request.worker_pid if request.time_start else None
        self._is_recorded = False
        self._is_freed = False
        self._give_up_at = 0.0
        try:
            self._ask: Ask | None = ask_of(
                task, request._context, task.singleton_options, task.singleton_unique, self._parts
            )
        except (ConfigurationError, TypeError):
            self._ask = None  # arguments that the task cannot take: it never had a lease

    def is_recorded(self) -> bool:
        """Record the run, unless that is done. False: the store is away."""
        if self._is_recorded or self._ask is None or self._outcome is None:
            return True
        try:
            self._record(self._ask, self._outcome)
        except StoreUnavailable as error:
            logger.warning("run_end_waits run=%s reason=%s", self._ask.run, error.reason)
            return False
        self._is_recorded = True
        return True

    def _record(self, ask: Ask, outcome: str) -> None:
        # Asked for again by the child's own name: granted again, with the child's fence.
        run = LeaseRequest(ask.run_key, ask.owner, ask.ttl, position=ask.position, note=ask.note)
        [answer] = self._parts.store.acquire([run])
        if isinstance(answer, Granted):
            keep_for = self._parts.settings.remember_for
            position = ask.position if outcome == LETTER_DUE else FINISHED
            self._parts.store.release([Release(answer.lease, position, outcome, keep_for)])
            self._news.ended(outcome, answer.lease.fence)
        else:
            # Another execution has it, or it is done: nothing here is ours to free.
            self._is_freed = True

    def free_when_gone(self) -> None:
        if self._ask is None or self._is_freed:
            return
        if self._is_gone():
            self._free(self._ask)
            return
        now = boottime()
        self._give_up_at = self._give_up_at or now + self._ask.ttl.total_seconds()
        if now < self._give_up_at:
            self.free_later()
        else:
            _pending.discard(self)

    def free_later(self) -> None:
        _pending.add(self)
        self._consumer.timer.call_after(_LOOK_EVERY_S, self.free_when_gone)

    def _free(self, ask: Ask) -> None:
        """Best effort: what cannot be freed runs out."""
        self._is_freed = True
        _pending.discard(self)
        asked = ask.requests()[1:] if self._outcome is not None else ask.requests()
        park = Park(ask.run, ask.ttl) if self._outcome is None else None
        store = self._parts.store
        try:
            granted = [each.lease for each in store.acquire(asked) if isinstance(each, Granted)]
            of_run = [lease for lease in granted if lease.key == ask.run_key]
            given_back = [Release(lease, park=park) for lease in granted if lease not in of_run]
            if not self.is_death:
                given_back += [Release(lease, undo=True) for lease in of_run]
            store.release(given_back)
            if self.is_death:
                self._let_run_out(of_run)
        except StoreUnavailable as error:
            logger.warning("leases_not_freed run=%s reason=%s", ask.run, error.reason)

    def _let_run_out(self, leases: Sequence[Lease]) -> None:
        # Whoever is granted what ran out is told how often that was: a run that kills its workers is
        # found out by it. So it is not given back, but renewed for next to nothing.
        for lease in leases:
            lease.ttl = _AT_ONCE
        self._parts.store.renew(leases)

    def _is_gone(self) -> bool:
        """Whether what executed it has ended: a child, or a greenlet, which is killed before anybody is
        told. A thread cannot be seen to."""
        if self._pid is None or getattr(self._consumer.pool, "is_green", False):
            return True
        processes = getattr(getattr(self._consumer.pool, "_pool", None), "_pool", None)
        if processes is None:
            return False
        return all(each.pid != self._pid or each.exitcode is not None for each in tuple(processes))

    def free_at_exit(self) -> None:
        give_up_at = boottime() + _AT_EXIT_S
        while self._ask is not None and not self._is_freed and boottime() < give_up_at:
            if self._is_gone():
                self._free(self._ask)
            else:
                time.sleep(0.05)


_pending: Final[set[Closing]] = set()


def _free_pending(process: int) -> None:
    # After a cold shutdown the pool has ended by now, and so has the timer.
    if os.getpid() == process:
        for closing in tuple(_pending):
            closing.free_at_exit()


# Imported in the parent process of a worker only. No signal of Celery tells of a cold shutdown's end.
atexit.register(_free_pending, os.getpid())
