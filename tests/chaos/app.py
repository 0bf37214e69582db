"""The application whose replicas are hurt. Its tasks write down what they do, and nothing else.

::

    celery -A tests.chaos.app beat      # as the world starts it
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from celery import Celery, signals

from celery_singleton_lock import LeaseLost, SingletonTask
from celery_singleton_lock.signals import run_skipped

from . import mutants
from .journal import Journal, new_id

LOCK_TTL_S = 3.0
SLOT_TTL_S = 1.5
VISIBILITY_S = int(os.environ.get("CHAOS_VISIBILITY", "12"))
START_WITHIN_S = 6.0
TELL_STACKS = signal.SIGRTMIN
"""Whoever gets it writes into its log where each of its threads is: for one that does not end."""

ENTRIES = {
    # name: (task, every so many seconds)
    "tick-a": ("tick", 1.0),
    "tick-b": ("tick", 1.0),
    "careful": ("careful", 2.0),
    "careless": ("careless", 3.0),
    "flaky": ("flaky", 4.0),
    "doomed": ("doomed", 5.0),
}
journal = Journal(Path(os.environ.get("CHAOS_JOURNAL", os.devnull)))
app = Celery("chaos", broker=os.environ.get("CHAOS_BROKER", "memory://"))
app.conf.update(
    beat_scheduler="celery_singleton_lock:SingletonScheduler",
    beat_schedule={
        entry: {"task": f"chaos.{task}", "schedule": every, "catch_up": "all"}
        for entry, (task, every) in ENTRIES.items()
    },
    singleton_lock_url=json.loads(os.environ.get("CHAOS_LOCKS", '"memory://"')),
    singleton_lock_ttl=LOCK_TTL_S,
    singleton_slot_ttl=SLOT_TTL_S,
    singleton_remember_for=600,
    singleton_start_within=START_WITHIN_S,
    # Workers are killed by the dozen here, and none of that is the message's fault.
    singleton_max_deliveries=100,
    worker_prefetch_multiplier=2,
    worker_hijack_root_logger=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    task_ignore_result=True,
)
if app.conf.broker_url.startswith("redis"):
    app.conf.broker_transport_options = {
        "visibility_timeout": VISIBILITY_S,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
        # Whoever dies while he restores messages keeps others from it for so long: 300 s by default.
        "unacked_mutex_expire": 5,
        "socket_timeout": 3,
        "socket_connect_timeout": 3,
    }


class Told:
    """One execution of a body: every line that it writes names the run, the fence and the execution."""

    def __init__(self, task: Any) -> None:
        self._run = task.current_run
        self._execution = new_id()

    def tell(self, what: str, **more: Any) -> None:
        """Also tells, after the line was written, whether the lease was still held then: whoever was
        stopped in between cannot know it, and does not claim it."""
        run = self._run
        event = new_id()
        was_held = run.remaining.total_seconds() > 0
        journal.write(
            what,
            event=event,
            execution=self._execution,
            run=run.id,
            task=run.task.removeprefix("chaos."),
            entry=run.entry,
            attempt=run.attempt,
            fence=run.fence,
            **more,
        )
        if was_held and run.remaining.total_seconds() > 0:
            journal.write("held", event=event)

    def ensure_held(self) -> None:
        try:
            self._run.ensure_held()
        except LeaseLost:
            self.tell("lost")
            raise


@app.task(base=SingletonTask, bind=True, name="chaos.tick", overlap="allow")
def tick(self: Any) -> None:
    told = Told(self)
    told.tell("start")
    told.tell("effect")
    told.tell("finish")


@app.task(base=SingletonTask, bind=True, name="chaos.careful", unique_on=(), overlap="queue")
def careful(self: Any) -> None:
    """Looks whether it still has its lease before each effect, as the docs advise."""
    told = Told(self)
    told.tell("start")
    for _ in range(4):
        time.sleep(0.2)
        told.ensure_held()
        told.tell("effect")
    told.tell("finish")


@app.task(base=SingletonTask, bind=True, name="chaos.careless", unique_on=(), overlap="queue")
def careless(self: Any) -> None:
    """Never looks. Only its fence can keep it from doing harm."""
    told = Told(self)
    told.tell("start")
    for _ in range(4):
        time.sleep(0.3)
        told.tell("effect")
    told.tell("finish")


@app.task(
    base=SingletonTask, bind=True, name="chaos.flaky", unique_on=(), overlap="queue",
    autoretry_for=(OSError,), retry_backoff=1, max_retries=3,
)  # fmt: skip
def flaky(self: Any) -> None:
    told = Told(self)
    told.tell("start")
    if self.current_run.attempt < 2:
        raise OSError("the first attempt always fails")
    told.tell("effect")
    told.tell("finish")


@app.task(base=SingletonTask, bind=True, name="chaos.doomed", overlap="allow")
def doomed(self: Any) -> None:
    Told(self).tell("start")
    raise ValueError("it always fails")


# What Celery itself tells, and when


@signals.task_received.connect(weak=False)
def on_received(request: Any, **_: Any) -> None:
    headers, about = request.message.headers, request.delivery_info or {}
    journal.write(
        "received",
        run=request.id,
        task=request.name.removeprefix("chaos."),
        entry=headers.get("singleton_entry"),
        slot=headers.get("singleton_slot"),
        attempt=(headers.get("retries") or 0) + 1,
        redelivered=bool(about.get("redelivered") or headers.get("redelivered")),
    )


@signals.task_success.connect(weak=False)
def on_success(sender: Any, **_: Any) -> None:
    """The end of the run is told to the world: callbacks are sent after this."""
    journal.write("concluded", run=sender.request.id, outcome="succeeded")


@signals.task_failure.connect(weak=False)
def on_failure(sender: Any, task_id: str, **_: Any) -> None:
    journal.write("concluded", run=task_id, outcome="failed")


@run_skipped.connect
def on_skipped(run: str, reason: str, **_: Any) -> None:
    journal.write("skipped", run=run, reason=reason)


@signals.worker_ready.connect(weak=False)
def on_ready(**_: Any) -> None:
    journal.write("ready", replica=os.environ.get("CHAOS_REPLICA"))


@signals.worker_init.connect(weak=False)
@signals.worker_process_init.connect(weak=False)
def on_process(**_: Any) -> None:
    journal.write("in_pool", replica=os.environ.get("CHAOS_REPLICA"))


# Connected after the product's own receiver, and so called when it has recorded the end.
@signals.task_postrun.connect(weak=False)
def on_recorded(task_id: str, state: str | None = None, **_: Any) -> None:
    journal.write("recorded", run=task_id, state=state)


if "CHAOS_REPLICA" in os.environ:
    # Not sys.stderr, which Celery replaces by a logger. Written in C: also while Python is stuck.
    faulthandler.register(TELL_STACKS, file=2)
mutants.apply_from_environment()
