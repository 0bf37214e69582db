"""The Celery app of the shop: where its servers are, and what is done when.

::

    celery -A example_project.app beat      # as many as you like
    celery -A example_project.app worker    # as many as you like
"""

from __future__ import annotations

import os

from celery import Celery
from celery.schedules import crontab

from celery_singleton_lock import sharded

DATABASE_URL = os.environ.get("SHOP_DATABASE_URL", "sqlite:///shop.sqlite")
BROKER_URL = os.environ.get("SHOP_BROKER_URL", "redis://localhost:6379/0")
# Several, with commas between them, are a quorum.
LOCK_URLS = os.environ.get("SHOP_LOCK_URL", BROKER_URL).split(",")

app = Celery("shop", broker=BROKER_URL, include=["example_project.tasks"])
app.conf.update(
    beat_scheduler="celery_singleton_lock:SingletonScheduler",
    beat_schedule={
        # catch_up: each second is counted, however long nobody could do it.
        "tally": {"task": "shop.tally", "schedule": 1.0, "catch_up": "all"},
        "reconcile payments": {"task": "shop.reconcile", "schedule": crontab(hour=2, minute=0)},
        "report eu": {"task": "shop.report", "schedule": 3600.0, "args": ("eu",)},
        "report us": {"task": "shop.report", "schedule": 3600.0, "args": ("us",)},
        # One entry a shard, each with a lock of its own.
        **sharded("pack parcels", "shop.pack_parcels", shards=4, schedule=5.0),
    },
    singleton_lock_url=LOCK_URLS if len(LOCK_URLS) > 1 else LOCK_URLS[0],
    # History, exactly-once effects and the outbox, in the database of the shop itself.
    singleton_database_url=DATABASE_URL,
    # Metrics and health; off unless somebody says where.
    singleton_http=os.environ.get("SHOP_HTTP"),
    singleton_lock_ttl=float(os.environ.get("SHOP_LOCK_TTL", "30")),
    singleton_slot_ttl=float(os.environ.get("SHOP_SLOT_TTL", "3")),
    worker_prefetch_multiplier=1,
    worker_send_task_events=True,
    task_send_sent_event=True,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    task_ignore_result=True,
)
