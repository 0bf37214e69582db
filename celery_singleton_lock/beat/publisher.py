"""Publishes runs as stock beat does, but with an id that every replica computes alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs

from celery_singleton_lock.broker import broker_errors, confirming_connection, connect
from celery_singleton_lock.core import headers
from celery_singleton_lock.core.redaction import redact

from .entries import BrokerUnavailable, Due
from .plain_message import is_plain, send_plain
from .plan import run_id

logger = logging.getLogger(__name__)


class Publisher:
    """`entry_of` finds the Celery entry of a name. The connection is opened when it is needed."""

    def __init__(
        self, app: Any, entry_of: Callable[[str], Any], on_refused: Callable[[Due], None]
    ) -> None:
        self._app = app
        self._entry_of = entry_of
        self._on_refused = on_refused
        self._connection: Any = None
        self._producer: Any = None

    def prepare(self) -> None:
        """Connect to the broker, unless that is done."""
        with self._telling_trouble():
            self._open()

    def publish(self, dues: Sequence[Due]) -> None:
        """Publish all, oldest first, and have them confirmed where the broker can. What can never be
        published (arguments that cannot be serialised) is reported and passed over."""
        with self._telling_trouble():
            producer = self._open()
            with producer.batch():
                sent = [due for due in dues if self._send(due, producer)]
        for due in sent:
            logger.info("slot_published entry=%r slot=%s", due.entry, _as_text(due.slot))

    @contextmanager
    def _telling_trouble(self) -> Iterator[None]:
        try:
            yield
        except broker_errors(self._connection) as error:
            self.close()
            raise BrokerUnavailable(redact(f"{type(error).__name__}: {error}")) from error

    def _send(self, due: Due, producer: Any) -> bool:
        """False if it can never be sent, by its own fault: no other should suffer for it, nor it be
        tried for ever."""
        entry = self._entry_of(due.entry)
        try:
            args, kwargs = _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
        except Exception:  # noqa: BLE001 - logged there
            return self._refuse(due)
        try:
            self._apply(due, entry, args, kwargs, producer)
        except broker_errors(self._connection):
            raise
        except Exception:  # noqa: BLE001 - logged there
            return self._refuse(due)
        return True

    def _refuse(self, due: Due) -> bool:
        logger.exception("beat_entry_refused entry=%r slot=%s", due.entry, _as_text(due.slot))
        self._on_refused(due)
        return False

    def _apply(
        self, due: Due, entry: Any, args: list[Any], kwargs: dict[str, Any], producer: Any
    ) -> None:
        options = {
            **entry.options,
            "task_id": run_id(self._app.main or "", due.entry, due.slot),
            # A dict of its own: the entry's is shared by all its runs.
            "headers": {**(entry.options.get("headers") or {}), **_headers(due)},
            # Ours is the only retry, with the lease in view.
            "retry": False,
        }
        task = self._app.tasks.get(entry.task)
        if is_plain(self._app, task, entry.options):
            send_plain(self._app, entry.task, task, args, kwargs, producer, options)
        elif task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            self._app.send_task(entry.task, args, kwargs, producer=producer, **options)

    def _open(self) -> Any:
        if self._producer is None:
            self._connection = confirming_connection(self._app)
            connect(self._connection)
            self._producer = _producer_class(self._app)(self._connection, auto_declare=False)
        return self._producer

    def close(self) -> None:
        """Drop the connection; the next publish opens another."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            try:
                connection.release()
            except Exception as error:  # noqa: BLE001 - it is given up anyway
                logger.debug("beat_connection_not_closed error=%s", type(error).__name__)


def _producer_class(app: Any) -> Any:
    class DeclaringOnce(app.amqp.Producer):  # type: ignore[misc]
        """kombu remembers what was declared, too, but looks it up by a copy bound to the channel: a
        fifth of the cost of a message. A new connection has a new producer, and so declares anew."""

        def maybe_declare(self, entity: Any, *args: Any, **kwargs: Any) -> Any:
            declared = self.__dict__.setdefault("_declared", {})
            if id(entity) not in declared:
                super().maybe_declare(entity, *args, **kwargs)
                declared[id(entity)] = entity  # kept alive, so that no other gets its id

    return DeclaringOnce


def _headers(due: Due) -> Mapping[str, Any]:
    return {
        "celery_beat_task": True,
        headers.ENTRY: due.entry,
        headers.SLOT: _as_text(due.slot),
    }


def _as_text(slot: datetime) -> str:
    return slot.isoformat().replace("+00:00", "Z")
