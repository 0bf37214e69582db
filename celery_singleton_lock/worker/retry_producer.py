"""Where the next attempt of a run is published: the broker confirms it before the last one is given up.

Celery does not wait for that. A RabbitMQ that is killed has forgotten what it had not yet written, and
the message of the attempt before, which it remembers, is only a copy then: the run would be lost.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from celery_singleton_lock.broker import BROKER_TIMEOUT_S, patient_connection

_opening: Final = threading.Lock()
_ATTRIBUTE: Final = "_singleton_retry_producers"


class _Producers:
    """One of each process. Those of the process it was forked from are kept, and left alone: to have
    one collected would end the parent's connection."""

    def __init__(self) -> None:
        self.by_process: dict[int, tuple[Any, threading.RLock]] = {}


@contextmanager
def confirming(app: Any, *, is_eager: bool) -> Iterator[dict[str, Any]]:
    """Options for `apply_async`, to be used inside the block. None where there is no broker, and where
    its answer is a confirm as it is."""
    if is_eager or app.connection_for_write().transport.driver_type != "amqp":
        yield {}
        return
    producer, lock = _own_producer(app)
    with lock:
        yield {"producer": producer, "confirm_timeout": BROKER_TIMEOUT_S}


def _own_producer(app: Any) -> tuple[Any, threading.RLock]:
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    with _opening:
        producers: _Producers = app.__dict__.setdefault(_ATTRIBUTE, _Producers())
        if os.getpid() not in producers.by_process:
            producer = app.amqp.Producer(patient_connection(app))
            producers.by_process[os.getpid()] = producer, threading.RLock()
        return producers.by_process[os.getpid()]
