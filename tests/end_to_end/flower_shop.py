"""A shop whose Flower is looked at."""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from celery.schedules import crontab

from celery_singleton_lock import SingletonTask

EVIL = "<script>alert(1)</script>"


def open_shop(redis: str, customers: int = 0, database: str | None = None) -> Celery:
    """Each customer is an entry of the schedule. `database`: where the ledger is."""
    app = Celery("shop", broker=redis, backend=redis, set_as_current=False)
    app.conf.update(
        beat_scheduler="celery_singleton_lock:SingletonScheduler",
        singleton_lock_ttl=4,
        singleton_slot_ttl=1.5,
        singleton_database_url=database,
        worker_prefetch_multiplier=1,
        worker_send_task_events=True,
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        beat_schedule={
            "invoices: send": {"task": "shop.invoices", "schedule": crontab(minute="*/5")},
            "nightly report": {"task": "shop.report", "schedule": crontab("30", "2"), "args": ("eu",)},
            "stock: count": {"task": "shop.stock", "schedule": 10.0},
            "prices: fetch": {"task": "shop.prices", "schedule": 15.0},
            "search index": {"task": "shop.index", "schedule": 5.0},
            "payments: collect": {"task": "shop.pay", "schedule": 20.0, "args": ("INV-1042",)},
            "mail: newsletter": {"task": "shop.mail", "schedule": crontab("0", "9", "mon")},
            "sessions: clean up": {"task": "shop.clean_up", "schedule": crontab(minute=7)},
            EVIL: {"task": EVIL, "schedule": crontab(minute=11)},
            **{
                f"customer {number:05d}: bill": {
                    "task": "shop.bill",
                    "schedule": crontab(hour=number % 24, minute=number % 60),
                }
                for number in range(customers)
            },
        },
    )
    _employ(app)
    return app


def _employ(app: Celery) -> None:
    def task(name: str, **options: Any) -> Any:
        return app.task(base=SingletonTask, name=name, shared=False, **options)

    for name in ("invoices", "mail", "clean_up", "bill"):

        @task(f"shop.{name}")
        def short() -> None:
            time.sleep(0.2)

    @task("shop.report", expect_within=1)
    def report(region: str) -> None:
        time.sleep(2)

    @task("shop.stock")
    def stock() -> None:
        time.sleep(0.1 + time.time() % 7 / 10)

    @task("shop.prices")
    def prices() -> None:
        time.sleep(0.3 + time.time() % 3)

    @task("shop.index", unique_on=(), expect_within=5)
    def index() -> None:
        """Takes longer than its interval now and then."""
        time.sleep(7 if int(time.time()) // 5 % 4 == 0 else 1)

    @task("shop.pay", autoretry_for=(ConnectionError,), default_retry_delay=1, max_retries=1)
    def pay(invoice: str) -> None:
        time.sleep(0.2)
        if time.time() % 60 < 25:
            raise ConnectionError(f"the bank does not answer, so {invoice} is not paid")

    @task(EVIL)
    def evil() -> None:
        raise ValueError(EVIL)
