"""`send`: a call of a task becomes a row, in the transaction of whoever calls."""

from __future__ import annotations

import json
import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from celery import current_app
from celery.canvas import Signature
from sqlalchemy import event
from sqlalchemy.orm import Session

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.ledger.columns import LONGEST_NAME
from celery_singleton_lock.ledger.outbox_tables import PENDING, OutboxRow
from celery_singleton_lock.settings import Settings

from . import eager, ordering, waking
from .lanes import lane_of
from .recording import new_id, record

App = Any  # Celery ships no types.

_prefixes: Final[weakref.WeakKeyDictionary[App, str]] = weakref.WeakKeyDictionary()
_reading: Final = threading.Lock()


ordering.watch()


def send(
    session: Any,
    task: Any,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    app: App | None = None,
    **options: Any,
) -> Any:
    """Publish a call of `task` once the transaction of `session` is committed, and never if it is not.

    `task` is a task, a signature, a chain, or the name of a task of `app` (default: Celery's current
    one). `options` are those of ``apply_async``. Calls with the same `key` are published in the order
    in which their transactions were committed; a transaction that sends for a key makes others that do
    wait for its end. `session` is a SQLAlchemy ``Session``, ``scoped_session`` or ``AsyncSession``.

    Returns the `AsyncResult`: its id is that of the task, now and on every repeat. Raises
    `ConfigurationError` for what cannot be kept in a row.
    """
    own = _session_of(session)
    _check_key(key)
    signature = _signature_of(task, app)
    app = signature.app
    task_id = options.pop("task_id", None) or signature.options.get("task_id") or new_id()
    if app.conf.task_always_eager:
        options["task_id"] = task_id
        eager.on_commit(own, lambda: signature.apply_async(args, kwargs, **options))
        return app.AsyncResult(task_id)
    note = record(signature, args or (), kwargs or {}, {**options, "task_id": task_id})
    own.add(
        OutboxRow(
            prefix=prefix_of(app),
            state=PENDING,
            lane=lane_of(key),
            key=key,
            task=_cut(note["headers"].get("task")),
            task_id=_cut(note["headers"].get("id")),
            message=json.dumps(note, separators=(",", ":")),
            created_at=datetime.now(UTC),
            tries=0,
        )
    )
    if waking.is_anybody_here():
        event.listen(own, "after_commit", waking.ring, once=True)
    return app.AsyncResult(task_id)


def prefix_of(app: App) -> str:
    """``singleton_key_prefix``, which keeps apart the applications that share a database."""
    # A proxy (celery.current_app) is another object each time: the app behind it is the one.
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _reading:
        if app not in _prefixes:
            _prefixes[app] = Settings.from_app(app).key_prefix
        return _prefixes[app]


def _session_of(given: Any) -> Session:
    found = given
    if callable(getattr(found, "registry", None)):  # scoped_session, async_scoped_session
        found = found.registry()
    found = getattr(found, "sync_session", found)
    if not isinstance(found, Session):
        raise ConfigurationError(
            f"the outbox writes in your own transaction: give a SQLAlchemy Session, and not "
            f"{type(given).__name__}"
        )
    return found


def _signature_of(task: Any, app: App | None) -> Signature:
    if isinstance(task, str):
        return (app if app is not None else current_app).signature(task)
    if isinstance(task, Signature):
        return task.clone()
    if not hasattr(task, "apply_async"):
        raise ConfigurationError(f"{task!r} is no task: give a task, a signature, or a task's name")
    return task.signature()


def _check_key(key: object) -> None:
    if key is None:
        return
    if not isinstance(key, str) or not key or "\0" in key or len(key) > LONGEST_NAME:
        raise ConfigurationError(
            f"key={key!r}: give a text of 1 to {LONGEST_NAME} characters without NUL"
        )


def _cut(text: Any) -> str:
    return str(text)[:LONGEST_NAME]
