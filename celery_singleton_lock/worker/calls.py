"""One call at a time: `apply_async` of a task with `on_duplicate`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.app.task import Task
from kombu.utils.uuid import uuid

from celery_singleton_lock.broker.declaring import Undeclared
from celery_singleton_lock.broker.kept_client import keep_client
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
    run, parts = task_id or uuid(), parts_of(app)
    claim = _Claim(task, args or (), kwargs or {}, run, parts)
    try:
        result = _publish(claim, task, args, kwargs, task_id=run, **options)
    except BaseException:
        claim.give_back()
        raise
    if claim.taken_by is not None:
        return _join(claim.taken_by, task, args, kwargs, run, parts, options)
    _keep_until_started(claim.lease, options.get("expires"), parts)
    return result


def _publish(claim: _Claim, task: Any, args: Any, kwargs: Any, **options: Any) -> Any:
    """None, and nothing is published, if the claim is taken by an equal call."""
    if options.get("connection"):
        # Celery makes a producer of its own for it, which has no gate.
        claim.ask()
        claim.settle()
        return None if claim.taken_by else Task.apply_async(task, args, kwargs, **options)
    given = options.pop("producer", None) or options.pop("publisher", None)
    trouble: Exception | None = None
    with task.app.producer_or_acquire(given) as producer:
        try:
            # Not earlier: those that wait for a producer would each have a connection to the store.
            claim.ask()
            result = Task.apply_async(task, args, kwargs, producer=_Gate(claim, producer), **options)
        except Exception as error:
            if claim.lease is not None or claim.goes_on_without:
                raise
            # Nothing was published, and the producer's connection is as good as before: an error that
            # leaves this block would close it.
            trouble = error
        else:
            # For the next call: now the channel is there for sure.
            keep_client(producer.channel)
            return result
    if claim.taken_by is None:
        raise trouble
    return None


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
    """Nothing is to be published."""


class _Claim:
    """The lease of one call. `ask` for it; `settle` waits for the answer, once."""

    def __init__(self, task: Any, args: Any, kwargs: Any, run: str, parts: Parts) -> None:
        self.lease: Lease | None = None
        self.taken_by: Held | None = None
        self.goes_on_without = False
        """The store is away, and the task is to run all the same."""
        self._parts = parts
        self._may_go_on_without = task.singleton_options.store_down(parts.settings) == "run"
        self._request = LeaseRequest(
            f"call:{task.singleton_unique.of(args, kwargs)}",
            run,
            parts.settings.slot_ttl,
            note=note_of_call(task.name, run),
        )
        self._answers: Callable[[], list[Answer]] | None = None

    def ask(self) -> None:
        """Raises `StoreUnavailable`."""
        with self._without_store():
            self._answers = self._parts.store.start_acquire([self._request])

    def settle(self) -> None:
        """`lease`, `taken_by` or `goes_on_without` is set after it. Raises `StoreUnavailable`."""
        answers, self._answers = self._answers, None
        if answers is None:
            return
        with self._without_store():
            match answers():
                case [Granted(lease)]:
                    self.lease = lease
                case [Held() as held]:
                    self.taken_by = held

    @contextmanager
    def _without_store(self) -> Iterator[None]:
        try:
            yield
        except StoreUnavailable:
            if not self._may_go_on_without:
                raise
            self.goes_on_without = True

    def give_back(self) -> None:
        """Best effort: what cannot be given back runs out."""
        try:
            self.settle()
            if self.lease is not None:
                self._parts.store.release([Release(self.lease)])
        except StoreUnavailable as error:
            logger.warning("call_not_released key=%r reason=%s", self._request.key, error.reason)


class _Gate:
    """Stands for a producer in one call: the claim is settled when Celery, which has made the message
    meanwhile, first uses it."""

    def __init__(self, claim: _Claim, producer: Any) -> None:
        self._claim = claim
        self._producer = producer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._settled(), name)

    def publish(self, body: Any, declare: Iterable[Any] | None = None, **options: Any) -> Any:
        producer = self._settled()
        return producer.publish(body, declare=Undeclared(producer, declare or ()), **options)

    def _settled(self) -> Any:
        claim = self._claim
        claim.settle()
        if claim.lease is None and not claim.goes_on_without:
            raise _Taken
        return self._producer


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
