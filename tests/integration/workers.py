"""A worker in a thread of the test, so that bodies can be seen and told what to do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import TestWorkController, start_worker
from celery.signals import setup_logging
from celery.worker import state

from celery_singleton_lock.core.models import Record
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of

Task = Any

LEAVES_CONNECTIONS = [
    # As Celery does, to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def new_app(server: RedisServer, **settings: Any) -> Celery:
    app = Celery("tasks", broker=server.url, backend=server.url, set_as_current=False)
    app.conf.update(
        singleton_slot_ttl=0.75,
        singleton_lock_ttl=2,
        worker_prefetch_multiplier=1,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        broker_transport_options={
            "visibility_timeout": 4,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        },
        **settings,
    )
    return app


def define(app: Celery, **options: Any) -> Callable[[Callable[..., Any]], Task]:
    """`app.task`, for this app alone: Celery gives tasks to all apps of a process."""
    return app.task(shared=False, **options)  # type: ignore[no-any-return]


@contextmanager
def working(
    app: Celery, *, pool: str = "threads", concurrency: int = 4, **options: Any
) -> Iterator[None]:
    # With a receiver, Celery leaves the logging of the whole process alone.
    setup_logging.connect(_leave_logging_alone)
    try:
        with start_worker(
            app, pool=pool, concurrency=concurrency, perform_ping_check=False, shutdown_timeout=20,
            WorkController=_Worker, **options,
        ):  # fmt: skip
            yield
    finally:
        setup_logging.disconnect(_leave_logging_alone)
        state.reset_state()
        # Where a worker did not end in time, Celery leaves word that the next one is to stop at once.
        state.should_stop = state.should_terminate = None


class _Worker(TestWorkController):  # type: ignore[misc]
    def ensure_started(self) -> None:
        """Celery's own waits for ever for one that has failed to start."""
        assert self._on_started.wait(60), "the worker did not start"


def _leave_logging_alone(**_: Any) -> None: ...


class Gate:
    """Bodies that enter wait here until they are let out."""

    def __init__(self) -> None:
        self.entered = threading.Semaphore(0)
        self._open = threading.Event()

    def enter(self) -> None:
        self.entered.release()
        assert self._open.wait(60)

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever went wrong: nobody waits here for ever."""
        self.open()

    def wait_for_entry(self, within: float = 20) -> bool:
        return self.entered.acquire(timeout=within)

    def open(self) -> None:
        self._open.set()


def record_of(app: Celery, key: str) -> Record | None:
    [record] = parts_of(app).store.peek([key])
    return record


def outcome_of(app: Celery, run: str) -> str | None:
    record = record_of(app, f"run:{run}")
    return record.outcome if record else None


def unacknowledged(server: RedisServer) -> int:
    client: Any = server.connect()
    return int(client.hlen("unacked"))


def queued(server: RedisServer, queue: str = "celery") -> int:
    client: Any = server.connect()
    return int(client.llen(queue))
