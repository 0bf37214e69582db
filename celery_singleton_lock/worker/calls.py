"""One call at a time: `apply_async` of a task with `on_duplicate`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.app.task import Task
from kombu.utils.uuid import uuid

from celery_singleton_lock.core.errors import DuplicateRun, StoreUnavailable
from celery_singleton_lock.core.models import Answer, Granted, Held, Lease, LeaseRequest, Release
from celery_singleton_lock.recovery.outbox.recording import Recorder

from .notes import note_of_call
from .parts import Parts, parts_of

logger = logging.getLogger(__name__)

QUEUED_FOR: Final = timedelta(hours=1)
"""How long a call that nobody starts keeps equal ones out."""

# A canvas waits for each of its own ids: a task in it is published, and the worker finds out.
_OF_A_CANVAS: Final = frozenset({"chain", "chord", "group_id", "link", "link_error"})


def apply_unique(
    task: Any, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
) -> Any:
    """As `apply_async`, unless an equal call is queued or running: then that one's result is returned,
    or `DuplicateRun` raised."""
    app = task.app
    is_call = not isinstance(options.get("producer"), Recorder)  # what goes to the outbox may never be
    if app.conf.task_always_eager or options.get("retries") or _is_in_canvas(options) or not is_call:
        return Task.apply_async(task, args, kwargs, task_id=task_id, **options)
    run = task_id or uuid()
    parts = parts_of(app)
    claim = _Claim(task, args or (), kwargs or {}, run, parts)
    try:
        result = _publish(claim, task, args, kwargs, task_id=run, **options)
    except _Taken as taken:
        return _join(taken.by, task, args, kwargs, run, parts, options)
    except BaseException:
        claim.give_back()
        raise
    _keep_until_started(claim.lease, options.get("expires"), parts)
    return result


def _publish(claim: _Claim, task: Any, args: Any, kwargs: Any, **options: Any) -> Any:
    """Raises `_Taken`, and publishes nothing, if an equal call is queued or running."""
    if options.get("connection"):
        claim.settle()
        return Task.apply_async(task, args, kwargs, **options)
    with task.app.producer_or_acquire(options.pop("producer", None)) as producer:
        gate = _Gate(claim, producer)
        return Task.apply_async(task, args, kwargs, producer=gate, **options)


def _join(
    held: Held, task: Any, args: Any, kwargs: Any, run: str, parts: Parts, options: dict[str, Any]
) -> Any:
    if held.by != run and task.singleton_options.on_duplicate == "raise":
        raise DuplicateRun(task.name, held.by)
    is_published = held.remaining > parts.settings.slot_ttl or parts.confirming.has(held.by)
    if held.by != run and is_published:
        return task.AsyncResult(held.by)
    # Whoever called first may have died before it published: a copy with the same id is executed once.
    return Task.apply_async(task, args, kwargs, task_id=held.by, **options)


def _is_in_canvas(options: dict[str, Any]) -> bool:
    return any(options.get(name) for name in _OF_A_CANVAS)


class _Taken(Exception):
    def __init__(self, by: Held) -> None:
        super().__init__(by)
        self.by = by


class _Claim:
    """The lease of one call. It is asked for at once; `settle` waits for the answer."""

    def __init__(self, task: Any, args: Any, kwargs: Any, run: str, parts: Parts) -> None:
        self.lease: Lease | None = None
        """None: it is not granted yet; or the store is away, and the task is to run all the same."""
        self._parts = parts
        self._goes_on_without = task.singleton_options.store_down(parts.settings) == "run"
        key = f"call:{task.singleton_unique.of(args, kwargs)}"
        note = note_of_call(task.name, run)
        request = LeaseRequest(key, run, parts.settings.slot_ttl, note=note)
        self._answers: Callable[[], list[Answer]] | None = None
        try:
            self._answers = parts.store.start_acquire([request])
        except StoreUnavailable:
            if not self._goes_on_without:
                raise

    def settle(self) -> None:
        """Raises `_Taken` if somebody else has it, and `StoreUnavailable`."""
        answers, self._answers = self._answers, None
        if answers is None:
            return
        try:
            [answer] = answers()
        except StoreUnavailable:
            if self._goes_on_without:
                return
            raise
        if isinstance(answer, Held):
            raise _Taken(answer)
        if isinstance(answer, Granted):
            self.lease = answer.lease

    def give_back(self) -> None:
        """Best effort: what cannot be given back runs out."""
        try:
            self.settle()
            if self.lease is not None:
                self._parts.store.release([Release(self.lease)])
        except _Taken:
            return
        except StoreUnavailable as error:
            logger.warning("call_not_released reason=%s", error.reason)


class _Gate:
    """Stands for a producer in one call: the claim is settled when Celery, which has made the message
    meanwhile, looks at the connection to publish it."""

    def __init__(self, claim: _Claim, producer: Any) -> None:
        self._claim = claim
        self._producer = producer

    @property
    def connection(self) -> Any:
        self._claim.settle()
        return self._producer.connection

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)


def _keep_until_started(lease: Lease | None, expires: Any, parts: Parts) -> None:
    if lease is None:
        return
    # Renewed and not parked: a worker may have adopted it already, under the same name and fence, and
    # may even be done with it. Soon and not now: the caller has waited for the store once.
    lease.ttl = max(parts.settings.slot_ttl, min(QUEUED_FOR, _until(expires)))
    parts.confirming.soon(lease)


def _until(expires: Any) -> timedelta:
    match expires:
        case int() | float():
            return timedelta(seconds=expires)
        case timedelta():
            return expires
        case datetime():
            aware = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
            return aware - datetime.now(UTC)
    return QUEUED_FOR
