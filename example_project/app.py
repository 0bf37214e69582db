"""A small shop, as its author would write it. Nothing in here knows of the demo.

::

    celery -A example_project.app beat      # as many as you like
    celery -A example_project.app worker    # as many as you like
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery

from celery_singleton_lock import SingletonTask

from . import database

app = Celery("shop", broker=os.environ.get("SHOP_REDIS", "redis://localhost:6379/0"))
app.conf.update(
    beat_scheduler="celery_singleton_lock:SingletonScheduler",
    beat_schedule={
        # catch_up: each second is counted, however long nobody could do it.
        "count": {"task": "shop.count", "schedule": 1.0, "catch_up": "all"},
    },
    # Short, so that nobody waits long for those who died. In earnest leave them at 30 and 3.
    singleton_lock_ttl=2,
    singleton_slot_ttl=1.5,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_ignore_result=True,
)


@app.task(base=SingletonTask, bind=True, name="shop.count", overlap="allow")
def count(self: Any) -> None:
    """Counts the visitors, for a table with one row a second."""
    database.note(self, "counted", self.current_run.slot.isoformat())


@app.task(base=SingletonTask, bind=True, name="shop.export")
def export(self: Any, day: str) -> None:
    """Collects what is sold on a day until the day is over, and writes it down.

    It writes with its fence. Somebody whose worker was stopped, and wakes up, cannot know how long
    that was: what he writes must not replace what his successor has written.
    """
    database.note(self, "begins to export", day)
    while not database.is_set(f"{day} is over"):
        time.sleep(0.05)
    is_written = database.write_export(day, self.current_run.fence)
    database.note(self, "has exported" if is_written else "is refused with its late export of", day)


@app.task(
    base=SingletonTask, bind=True, name="shop.pay",
    autoretry_for=(ConnectionError,), retry_backoff=1, max_retries=2,
)  # fmt: skip
def pay(self: Any, invoice: str) -> None:
    """Needs a bank that answers. After three attempts somebody has to look at it."""
    database.note(self, "tries to pay", invoice)
    if not database.is_set("the bank is open"):
        raise ConnectionError("the bank does not answer")
    database.note(self, "has paid", invoice)
