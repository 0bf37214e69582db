"""Publishes runs as stock beat does, but with an id that every replica computes alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs
from kombu.exceptions import BatchPublishError, OperationalError

from celery_singleton_lock.core.redaction import redact

from .entries import BrokerUnavailable, Due
from .plain_message import PlainMessages
from .plan import run_id

logger = logging.getLogger(__name__)

ENTRY_HEADER: Final = "singleton_entry"
SLOT_HEADER: Final = "singleton_slot"
BROKER_TIMEOUT_S: Final = 5.0


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
                plain = PlainMessages(self._app)
                sent = [due for due in dues if self._send(due, producer, plain)]
        if logger.isEnabledFor(logging.INFO):
            for due in sent:
                logger.info("slot_published entry=%r slot=%s", due.entry, _as_text(due.slot))

    @contextmanager
    def _telling_trouble(self) -> Iterator[None]:
        try:
            yield
        except self._connection_errors() as error:
            self.close()
            raise BrokerUnavailable(redact(f"{type(error).__name__}: {error}")) from error

    def _send(self, due: Due, producer: Any, plain: PlainMessages) -> bool:
        """False if it can never be sent, by its own fault: no other should suffer for it, nor it be
        tried for ever."""
        entry = self._entry_of(due.entry)
        try:
            args, kwargs = _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
        except Exception:  # noqa: BLE001 - logged there
            return self._refuse(due)
        try:
            self._apply(due, entry, args, kwargs, producer, plain)
        except self._connection_errors():
            raise
        except Exception:  # noqa: BLE001 - logged there
            return self._refuse(due)
        return True

    def _refuse(self, due: Due) -> bool:
        logger.exception("beat_entry_refused entry=%r slot=%s", due.entry, _as_text(due.slot))
        self._on_refused(due)
        return False

    def _apply(
        self,
        due: Due,
        entry: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        producer: Any,
        plain: PlainMessages,
    ) -> None:
        task_id = run_id(self._app.main or "", due.entry, due.slot)
        # A dict of its own: the entry's is shared by all its runs.
        headers = {**(entry.options.get("headers") or {}), **_headers(due)}
        if plain.send(
            producer, entry.task, args, kwargs, entry.options, task_id=task_id, headers=headers
        ):
            return
        # Ours is the only retry, with the lease in view.
        options = {**entry.options, "task_id": task_id, "headers": headers, "retry": False}
        task = self._app.tasks.get(entry.task)
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            self._app.send_task(entry.task, args, kwargs, producer=producer, **options)

    def _open(self) -> Any:
        if self._producer is None:
            options = {
                **self._patience(),
                **self._app.conf.broker_transport_options,
                "confirm_publish": True,
            }
            self._connection = self._app.connection_for_write(transport_options=options)
            self._connection.ensure_connection(max_retries=1, timeout=2)
            self._producer = _producer_class(self._app)(self._connection, auto_declare=False)
        return self._producer

    def _patience(self) -> dict[str, float]:
        """kombu waits for ever for a Redis that has gone silent, unless it is told not to."""
        if not str(self._app.conf.broker_write_url).startswith(("redis", "sentinel")):
            return {}
        return {"socket_timeout": BROKER_TIMEOUT_S, "socket_connect_timeout": BROKER_TIMEOUT_S}

    def _connection_errors(self) -> tuple[type[BaseException], ...]:
        known = (BatchPublishError, OperationalError, ConnectionError, TimeoutError, OSError)
        if self._connection is None:
            return known
        return (*known, *self._connection.connection_errors, *self._connection.channel_errors)

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
        ENTRY_HEADER: due.entry,
        SLOT_HEADER: _as_text(due.slot),
    }


def _as_text(slot: datetime) -> str:
    return slot.isoformat().replace("+00:00", "Z")
