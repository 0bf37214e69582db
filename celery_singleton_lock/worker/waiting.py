"""Messages that wait in a worker, unacknowledged, until they are offered to its pool again.

Those that wait for one job stand in line, and the first is offered as soon as the job is free: where
the store tells of that, whoever had it, and elsewhere if a run of this worker had it. All are offered
now and then besides: word may be missed, and a job is also free when its lease has run out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from weakref import WeakSet, WeakValueDictionary

from celery.worker import state

from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.leases import LeaseStore

from .run import Keep, pause_before_offer

logger = logging.getLogger(__name__)

Request = Any  # a SingletonRequest
Consumer = Any

_LISTENS_ON_S: Final = 60.0
"""After a message has begun to wait. One that still waits has been offered, and waits anew, before."""
_LOOKS_UP: Final = timedelta(seconds=1)
_NEXT_TRY_S: Final = 3.0


class Waiting:
    """Of one app in one process: the parent of a pool."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        # Entered again by a signal handler, in a cold shutdown.
        self._changing = threading.RLock()
        self._messages: WeakValueDictionary[tuple[str, int, int], Request] = WeakValueDictionary()
        # A line lives as long as those that stand in it, which hold it.
        self._lines: WeakValueDictionary[str, _Line] = WeakValueDictionary()
        self._listens_until = 0.0
        self._is_listening = False
        self._is_deaf = False

    def add(self, request: Request, keep: Keep, consumer: Consumer) -> bool:
        """False: another message of the same attempt waits already, and will do for both."""
        with self._changing:
            if not self._is_to_wait(request, consumer):
                return False
            self._messages[request.attempt_name] = request
            now = boottime()
            waited = timedelta(seconds=now - request.kept_since)
            is_first = self._stand_in_line(request, keep)
            lock_wait = request.task.singleton_options.lock_wait
            pause = pause_before_offer(keep, request.offers, waited, lock_wait, is_first=is_first)
            request.offers += 1
            logger.log(
                logging.INFO if request.offers == 1 else logging.DEBUG,
                "run_kept task=%s run=%s reason=%r by=%s offers=%d pause_s=%.2f",
                request.task.name, request.id, keep.reason, keep.by, request.offers, pause,
            )  # fmt: skip
            # It waits beside those that the worker may prefetch, as a task with an ETA does.
            consumer.qos.increment_eventually()
            request._eta_timer_entry = consumer.timer.call_after(
                pause, consumer.apply_eta_task, (request,), priority=6
            )
            state.task_scheduled(request)
        if request.line is not None:
            self._listen(consumer)
        return True

    def ended(self, request: Request, consumer: Consumer) -> None:
        """A run of this worker is over, and so is its job for now."""
        if not self._is_deaf:
            return  # the store tells
        for line in list(self._lines.values()):
            if line is request.line or line.held_by == request.execution:
                consumer.timer.call_after(0, self._offer_first, (line.job, consumer))

    def _is_to_wait(self, request: Request, consumer: Consumer) -> bool:
        other = self._messages.get(request.attempt_name)
        if other is None or other is request or other not in state.scheduled_requests:
            return True
        mine, others = request.message, other.message
        if mine.channel is others.channel and mine.delivery_tag != others.delivery_tag:
            return False
        # The same message, delivered again: only the later delivery can be acknowledged.
        consumer.timer.cancel(other._eta_timer_entry)
        state.scheduled_requests.discard(other)
        consumer.qos.decrement_eventually()
        return True

    def _stand_in_line(self, request: Request, keep: Keep) -> bool:
        """Whether it is the first of those that wait for its job."""
        line = self._lines.get(keep.job) if keep.job else None
        if keep.job and line is None:
            line = self._lines[keep.job] = _Line(keep.job)
        request.line = line
        if line is None:
            return False
        line.held_by = keep.by
        first = line.first
        line.requests.add(request)
        return first is None or request.kept_since <= first.kept_since

    def _offer_first(self, job: str, consumer: Consumer) -> None:
        with self._changing:
            line = self._lines.get(job)
            first = None if line is None else line.first
            if first is None:
                return
            consumer.timer.cancel(first._eta_timer_entry)
        # Not in there: a pool may keep it waiting for a slot, whose user wants to come in.
        consumer.apply_eta_task(first)

    # Being told by the store

    def _listen(self, consumer: Consumer) -> None:
        with self._changing:
            self._listens_until = boottime() + _LISTENS_ON_S
            if self._is_listening or self._is_deaf:
                return
            self._is_listening = True
        listener = threading.Thread(
            target=self._keep_listening, args=(consumer,), name="singleton-releases", daemon=True
        )
        listener.start()

    def _keep_listening(self, consumer: Consumer) -> None:
        while self._is_to_listen():
            try:
                self._hear(consumer)
            except StoreUnavailable as error:
                # Perhaps its user may not listen: all are offered now and then, too.
                logger.debug("releases_not_heard reason=%s", error.reason)
                time.sleep(_NEXT_TRY_S)

    def _is_to_listen(self) -> bool:
        with self._changing:
            self._is_listening = boottime() < self._listens_until and not self._is_deaf
            return self._is_listening

    def _hear(self, consumer: Consumer) -> None:
        releases = self._store.releases()
        if releases is None:
            self._is_deaf = True
            return
        with releases as told:
            while self._is_to_listen():
                key = told.next(_LOOKS_UP)
                if key is not None and key in self._lines:
                    _in_loop(consumer, self._offer_first, key, consumer)


class _Line:
    __slots__ = ("__weakref__", "held_by", "job", "requests")

    def __init__(self, job: str) -> None:
        self.job: Final = job
        self.held_by = ""
        self.requests: Final[WeakSet[Request]] = WeakSet()

    @property
    def first(self) -> Request | None:
        """Who has waited longest, of those that are not offered just now."""
        waiting = [request for request in self.requests if request in state.scheduled_requests]
        return min(waiting, key=lambda request: request.kept_since, default=None)


def _in_loop(consumer: Consumer, call: Callable[..., None], *args: Any) -> None:
    """From another thread than that of the consumer."""
    soon = consumer.timer.call_after
    if consumer.hub is None:
        soon(0, call, args)
    else:
        consumer.hub.call_soon(soon, 0, call, args)
