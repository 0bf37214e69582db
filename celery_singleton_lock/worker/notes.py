"""What the records of a run tell people, and whoever takes over.

Written as JSON at once: to have it made of objects takes as long as all else before a task begins.
"""

from __future__ import annotations

from collections.abc import Mapping
from json import dumps
from json.encoder import encode_basestring_ascii as quoted
from typing import Any

from celery_singleton_lock.core import headers
from celery_singleton_lock.core.models import WrittenNote

from .options import TaskOptions


def notes_of(
    task: str, request: Any, custom: Mapping[str, Any], message: str | None, options: TaskOptions
) -> tuple[WrittenNote, WrittenNote]:
    """Of the run's record, with the `message` as `message_note.encode` wrote it, and of the others."""
    about = f'{{"run":{quoted(request.id)},"task":{quoted(task)},"worker":{_json(request.hostname)}'
    if options.expect_within is not None:
        # So that whoever looks at the lease can tell that it is overdue.
        about += f',"expect_within":{options.expect_within.total_seconds()}'
    run = (
        f'{about},"entry":{_json(custom.get(headers.ENTRY))},"slot":{_json(custom.get(headers.SLOT))}'
        f',"attempt":{(request.retries or 0) + 1}'
    )
    if message is not None:
        run += f',"message":{message}'
    return WrittenNote(run + "}"), WrittenNote(about + "}")


def note_of_call(task: str, run: str) -> WrittenNote:
    """Of a call's record, until a worker adopts it."""
    return WrittenNote(f'{{"run":{quoted(run)},"task":{quoted(task)},"state":"published"}}')


def _json(value: object) -> str:
    if value is None:
        return "null"
    return quoted(value) if isinstance(value, str) else dumps(value)
