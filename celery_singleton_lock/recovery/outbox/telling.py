"""Tells of a published row what Celery tells of a published task, when it is true."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from celery.signals import after_task_publish
from kombu.serialization import loads

from celery_singleton_lock.recovery.message_note import decode_body

from .lanes import Pending

logger = logging.getLogger(__name__)

_OF_THE_EVENT: Final = {
    "id": "uuid", "root_id": "root_id", "parent_id": "parent_id", "task": "name",
    "argsrepr": "args", "kwargsrepr": "kwargs", "retries": "retries", "eta": "eta",
    "expires": "expires",
}  # fmt: skip


def tell(app: Any, producer: Any, rows: Iterable[Pending]) -> None:
    """``after_task_publish``, and with ``task_send_sent_event`` the event ``task-sent``. Never raises:
    the rows are published, whoever fails to hear of it."""
    sends_events = app.conf.task_send_sent_event
    if not sends_events and not after_task_publish.receivers:
        return
    for note in (row.note for row in rows if row.note is not None):
        try:
            _signal(note)
            if sends_events:
                app.amqp._event_dispatcher.publish("task-sent", _event(note), producer, retry=False)
        except Exception:
            logger.exception("outbox_not_told run=%s", note["headers"].get("id"))


def _signal(note: Mapping[str, Any]) -> None:
    if after_task_publish.receivers:
        content_type = note["content_type"]
        body = loads(decode_body(note), content_type, note["content_encoding"], accept=[content_type])
        place = {name: note[name] for name in ("exchange", "routing_key")}
        headers = note["headers"]
        after_task_publish.send(sender=headers.get("task"), body=body, headers=headers, **place)


def _event(note: Mapping[str, Any]) -> dict[str, Any]:
    fields = {ours: note["headers"].get(theirs) for theirs, ours in _OF_THE_EVENT.items()}
    place = {name: note.get(name) for name in ("exchange", "routing_key", "queue")}
    return fields | place
