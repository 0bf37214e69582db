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
from enum import Enum
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


class Place(Enum):
    WAITS = 1
    NOT_NEEDED = 2
    """Another message of the same attempt waits already, and will do for both."""
    STALE = 3
    """Its connection is gone, and what was delivered in its place waits already: nothing is to be done
    about it, above all no acknowledgement."""


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
        self._hears = False
        self._may_be_told = True
        self._is_told_of = False

    def add(self, request: Request, keep: Keep, consumer: Consumer) -> Place:
        with self._changing:
            place = self._place(request, consumer)
            if place is not Place.WAITS:
                return place
            self._messages[request.attempt_name] = request
            now = boottime()
            waited = timedelta(seconds=now - request.kept_since)
            is_first = self._stand_in_line(request, keep, consumer)
            lock_wait = request.task.singleton_options.lock_wait
            # While it would be told, there is no hurry.
            is_eager = is_first and not self._hears
            pause = pause_before_offer(keep, request.offers, waited, lock_wait, is_eager=is_eager)
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
            self._listen()
        return Place.WAITS

    def ended(self, request: Request) -> None:
        """A run of this worker is over, and so is its job for now."""
        if self._hears or not self._lines:
            return  # the store tells
        with self._changing:
            lines = list(self._lines.values())
        for line in lines:
            if line is request.line or line.held_by == request.execution:
                line.consumer.timer.call_after(0, self._offer_first, (line.job,))

    def _place(self, request: Request, consumer: Consumer) -> Place:
        other = self._messages.get(request.attempt_name)
        if other is None or other is request or other not in state.scheduled_requests:
            return Place.WAITS
        mine, others = request.message, other.message
        if mine.channel is others.channel:
            if mine.delivery_tag != others.delivery_tag:
                return Place.NOT_NEEDED
        elif others.channel is getattr(consumer.task_consumer, "channel", None):
            # The same message was delivered again, while this one was executed.
            return Place.STALE
        # The same message, delivered again: only the later delivery can be acknowledged.
        consumer.timer.cancel(other._eta_timer_entry)
        state.scheduled_requests.discard(other)
        consumer.qos.decrement_eventually()
        return Place.WAITS

    def _stand_in_line(self, request: Request, keep: Keep, consumer: Consumer) -> bool:
        """Whether it is the first of those that wait for its job."""
        line = self._lines.get(keep.job) if keep.job else None
        if keep.job and line is None:
            line = self._lines[keep.job] = _Line(keep.job)
        request.line = line
        if line is None:
            return False
        line.held_by, line.consumer = keep.by, consumer
        first = line.first
        line.requests.add(request)
        return first is None or request.kept_since <= first.kept_since

    def _offer_first(self, job: str) -> None:
        """In the loop of the consumer, or the thread of its timer."""
        with self._changing:
            line = self._lines.get(job)
            first = None if line is None else line.first
            if line is None or first is None:
                return
            line.consumer.timer.cancel(first._eta_timer_entry)
            # To cancel a greenlet lets others run: the connection may be gone now, and all with it.
            if first not in state.scheduled_requests:
                return
        # Not in there: a pool may keep it waiting for a slot, whose user wants to come in.
        line.consumer.apply_eta_task(first)

    # Being told by the store

    def _listen(self) -> None:
        with self._changing:
            self._listens_until = boottime() + _LISTENS_ON_S
            if self._is_listening or not self._may_be_told:
                return
            self._is_listening = True
        threading.Thread(target=self._keep_listening, name="singleton-releases", daemon=True).start()

    def _keep_listening(self) -> None:
        while self._is_to_listen():
            try:
                self._hear()
            except Exception as error:  # noqa: BLE001 - whatever it is, all are offered now and then
                self._tell_of_deafness(error)
                time.sleep(_NEXT_TRY_S)

    def _is_to_listen(self) -> bool:
        with self._changing:
            self._is_listening = boottime() < self._listens_until and self._may_be_told
            return self._is_listening

    def _hear(self) -> None:
        releases = self._store.releases()
        if releases is None:
            self._may_be_told = False
            return
        try:
            with releases as told:
                self._hears = True
                while self._is_to_listen():
                    key = told.next(_LOOKS_UP)
                    line = None if key is None else self._lines.get(key)
                    if line is not None:
                        _in_loop(line.consumer, self._offer_first, line.job)
        finally:
            self._hears = False

    def _tell_of_deafness(self, error: Exception) -> None:
        reason = error.reason if isinstance(error, StoreUnavailable) else repr(error)
        is_for_good = "NoPermission" in reason
        # A store that is away is told of by all who ask it for something.
        logger.log(
            logging.WARNING if is_for_good and not self._is_told_of else logging.DEBUG,
            "releases_not_heard reason=%s", reason,
        )  # fmt: skip
        self._is_told_of = self._is_told_of or is_for_good


class _Line:
    __slots__ = ("__weakref__", "consumer", "held_by", "job", "requests")

    def __init__(self, job: str) -> None:
        self.job: Final = job
        self.held_by = ""
        self.consumer: Consumer = None
        """Of the latest one: those of earlier ones are gone with their connection."""
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
