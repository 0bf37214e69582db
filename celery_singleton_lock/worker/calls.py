"""One call at a time: `apply_async` of a task with `on_duplicate`."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery.app.task import Task
from kombu.utils.uuid import uuid

from celery_singleton_lock.core.errors import DuplicateRun, StoreUnavailable
from celery_singleton_lock.core.models import Granted, Held, Lease, LeaseRequest, Release
from celery_singleton_lock.recovery.outbox.recording import Recorder

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
    lease = _claim(task, args or (), kwargs or {}, run, parts)
    if isinstance(lease, Held):
        if lease.by != run and task.singleton_options.on_duplicate == "raise":
            raise DuplicateRun(task.name, lease.by)
        is_published = lease.remaining > parts.settings.slot_ttl or parts.confirming.has(lease.by)
        if lease.by != run and is_published:
            return task.AsyncResult(lease.by)
        # Whoever called first may have died before it published: a copy with the same id is executed
        # once.
        return Task.apply_async(task, args, kwargs, task_id=lease.by, **options)
    try:
        result = Task.apply_async(task, args, kwargs, task_id=run, **options)
    except BaseException:
        _give_back(lease, parts)
        raise
    _keep_until_started(lease, options.get("expires"), parts)
    return result


def _is_in_canvas(options: dict[str, Any]) -> bool:
    return any(options.get(name) for name in _OF_A_CANVAS)


def _claim(task: Any, args: Any, kwargs: Any, run: str, parts: Parts) -> Lease | Held | None:
    """None: the store is away, and the task is to run all the same."""
    key = f"call:{task.singleton_unique.of(args, kwargs)}"
    request = LeaseRequest(
        key, run, parts.settings.slot_ttl, note={"run": run, "task": task.name, "state": "published"}
    )
    try:
        [answer] = parts.store.acquire([request])
    except StoreUnavailable:
        if task.singleton_options.store_down(parts.settings) == "run":
            return None
        raise
    if isinstance(answer, Granted):
        return answer.lease
    return answer if isinstance(answer, Held) else None


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


def _give_back(lease: Lease | None, parts: Parts) -> None:
    if lease is None:
        return
    try:
        parts.store.release([Release(lease)])
    except StoreUnavailable as error:
        logger.warning("call_not_released key=%r reason=%s", lease.key, error.reason)
