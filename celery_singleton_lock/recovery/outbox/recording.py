"""The message of a call as Celery makes it, written down instead of published. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from celery.canvas import Signature, _chain, chord, group
from celery.canvas import chunks as chunks_of
from kombu.exceptions import EncodeError
from kombu.serialization import dumps
from kombu.utils.uuid import uuid

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.recovery.message_note import encode_body

_PICKLE: Final = "application/x-python-serialize"
_OF_THE_CALL: Final = frozenset({"mandatory", "immediate", "timeout", "confirm_timeout", "expiration"})
"""Said to a broker that is there, or counted from when it is published: the relay knows better."""

Note = dict[str, Any]
"""As `message_note.republish` takes it, and the queue that is to be declared."""


def record(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> Note:
    """What `signature.apply_async` would publish. Raises `ConfigurationError` for what no row can hold,
    and TypeError, as a call would, for arguments that the task does not take."""
    first, more = _first_of(signature, args, kwargs, options)
    recorder = Recorder()
    # With a result to come, Celery would ask the result backend to listen for it, which is I/O.
    try:
        first.apply_async(producer=recorder, **{**more, "ignore_result": True})
    except Recorded as recorded:
        recorded.note["headers"]["ignore_result"] = _ignores_result(first, more)
        return recorded.note
    raise ConfigurationError(f"a call of {first.task} published nothing: it cannot go into the outbox")


def _first_of(
    signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> tuple[Signature, dict[str, Any]]:
    """The task that is to be published, and how: what comes after it is in its message."""
    if isinstance(signature, _chain):
        options = {**signature.options, **options}
        steps, _ = signature.prepare_steps(
            (*args, *signature.args), dict(kwargs), signature.tasks,
            link_error=options.pop("link_error", None), app=signature.app,
            last_task_id=options.pop("task_id"),
        )  # fmt: skip
        if link := options.pop("link", None):
            steps[0].extend_list_option("link", link)
        first = steps.pop()
        more = {**options, "chain": steps} if steps else dict(options)
    else:
        first, more = signature, {"args": args, "kwargs": kwargs, **options}
    if isinstance(first, group | chord | chunks_of):
        raise ConfigurationError(
            f"a {type(first).__name__.strip('_')} is more than one message, and needs its result "
            "backend before it is sent: send a task that starts it"
        )
    return first, more


def _ignores_result(first: Signature, options: Mapping[str, Any]) -> Any:
    task = first.app.tasks.get(first.task)
    said = {**first.options, **options}
    return said.get("ignore_result", getattr(task, "ignore_result", None))


class Recorded(BaseException):
    """Ends a call of Celery's at the point where it would publish: what follows is not true yet."""

    def __init__(self, note: Note) -> None:
        super().__init__(note)
        self.note = note


class Recorder:
    """A producer that writes down what it is to publish, and goes no further."""

    serializer = None

    @property
    def connection(self) -> Recorder:
        return self

    def _reraise_as_library_errors(self) -> AbstractContextManager[None]:
        return nullcontext()

    def publish(
        self,
        body: Any,
        *,
        exchange: Any,
        routing_key: str,
        serializer: str,
        compression: str | None,
        delivery_mode: Any,
        declare: Any,
        headers: Mapping[str, Any],
        retry: Any = None,
        retry_policy: Any = None,
        **properties: Any,
    ) -> None:
        task = headers.get("task")
        try:
            content_type, content_encoding, encoded = dumps(body, serializer)
        except (EncodeError, TypeError, ValueError) as error:
            raise ConfigurationError(
                f"a call of {task} cannot be kept in the outbox, for its arguments are not "
                f"{serializer}: {error}. Pass ids and plain values"
            ) from None
        if content_type == _PICKLE:
            raise ConfigurationError(
                f"a call of {task} cannot be kept in the outbox, which holds no pickle: set "
                "task_serializer to 'json', or pass serializer='json'"
            )
        note = {
            **encode_body(encoded.encode() if isinstance(encoded, str) else bytes(encoded)),
            "headers": dict(headers),
            "properties": {
                name: value
                for name, value in {**properties, "delivery_mode": delivery_mode}.items()
                if value is not None and name not in _OF_THE_CALL
            },
            "content_type": content_type,
            "content_encoding": content_encoding,
            "exchange": getattr(exchange, "name", exchange) or "",
            "routing_key": routing_key,
            "queue": _queue_of(declare),
            "compression": compression,
        }
        raise Recorded(_plain(note, task))


def _queue_of(declare: Any) -> str | None:
    return next((str(each.name) for each in declare or () if hasattr(each, "routing_key")), None)


def _plain(note: Note, task: object) -> Note:
    try:
        plain: Note = json.loads(json.dumps(note))
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"a call of {task} cannot be kept in the outbox, for its headers or options are not "
            f"plain JSON: {error}"
        ) from None
    return plain


def new_id() -> str:
    return str(uuid())
