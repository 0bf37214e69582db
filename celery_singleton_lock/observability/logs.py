"""The log of a process: as JSON if asked for, and not flooded by one event.

Celery sets up the handlers of a worker and of a beat; what is done here is done to those, and only if
they are Celery's: who sets up logging alone uses `JsonFormatter` and `RepeatFilter` as they like.
"""

from __future__ import annotations

import json
import logging
import time
import weakref
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from threading import Lock
from typing import Any, Final

from celery._state import get_current_task
from celery.app.log import Logging
from celery.signals import after_setup_logger, after_setup_task_logger, setup_logging

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.settings import Settings

from .log_lines import PACKAGE, read_line

WINDOW_S: Final = 60.0
_NAME: Final = "celery_singleton_lock.logs"


class JsonFormatter(logging.Formatter):
    """One JSON object a line. Lines of ours have an ``event`` and its fields, others a ``message``;
    those from inside a task have its name as ``task`` and its id as ``run``."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
        }
        task = get_current_task()
        if task is not None and task.request.id:
            said |= {"task": task.name, "run": task.request.id}
        line = read_line(record)
        if line is None:
            said["message"] = _shown(record.getMessage())
        else:
            said |= {"event": line.event, **line.fields}
            if line.hint:
                said["hint"] = line.hint
        if record.exc_info:
            said["traceback"] = _shown(self.formatException(record.exc_info))
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        return json.dumps(said, default=str)


def _shown(text: str) -> str:
    """Lines of others, and tracebacks, may quote a URL; in lines of ours nothing is left to hide."""
    return redact(text) if "://" in text else text


class RepeatFilter(logging.Filter):
    """Lets so many lines of one event through a minute. The first one of a later minute says how many
    were left out before it. What people did to the system (``audit``) is never left out."""

    def __init__(self, at_most: int, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._at_most = at_most
        self._clock = clock
        self._lock = Lock()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(PACKAGE) or record.name == f"{PACKAGE}.audit":
            return True
        left_out = 0
        with self._lock:
            # By the template: there are only as many as there are calls in the code.
            since, count = self._seen.get(str(record.msg), (0.0, 0))
            now = self._clock()
            if count and now - since < WINDOW_S:
                self._seen[str(record.msg)] = (since, count + 1)
                return count < self._at_most
            left_out = max(0, count - self._at_most)
            self._seen[str(record.msg)] = (now, 1)
        if left_out:
            _add_field(record, "left_out", left_out)
        return True


def _add_field(record: logging.LogRecord, name: str, value: int) -> None:
    event, _, rest = str(record.msg).partition(" ")
    values = record.args if isinstance(record.args, tuple) else ()
    places = event.count("%")
    record.msg = f"{event} {name}=%d {rest}".rstrip()
    record.args = (*values[:places], value, *values[places:])


def attach(app: Any) -> None:
    """See to the handlers that Celery has made for `app`, or will make. Reads no settings before that.
    Twice is once; in a process with several apps, the first one's settings count."""
    told_by = weakref.ref(app)

    def take(logger: logging.Logger, **_: Any) -> None:
        if (app := told_by()) is not None:
            _set_up(logger.handlers, app)

    after_setup_logger.connect(take, weak=False, dispatch_uid=_NAME)
    after_setup_task_logger.connect(take, weak=False, dispatch_uid=_NAME)
    # Not by app.log, which would read the config. Of the class, and so of the process.
    if Logging._setup and not setup_logging.receivers:
        # A quiet beat makes its scheduler after its log.
        _set_up((*logging.root.handlers, *logging.getLogger("celery.task").handlers), app)


def _set_up(handlers: Iterable[logging.Handler], app: Any) -> None:
    try:
        settings = Settings.from_app(app)
    except ConfigurationError:
        return  # Whoever needs the settings tells, and now there is a log to tell it in.
    for handler in handlers:
        if settings.log_format == "json":
            handler.setFormatter(JsonFormatter())
        if not any(isinstance(each, RepeatFilter) for each in handler.filters):
            handler.addFilter(RepeatFilter(settings.log_repeats))
