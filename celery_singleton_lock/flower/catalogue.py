"""Every metric of ours on Flower's page.

The names are those that workers and beats have, with ``flower_`` before them: what Flower heard is what
workers have counted, too, and a sum over one name must not count it twice.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from celery_singleton_lock.observability.metrics import catalogue as all_
from celery_singleton_lock.observability.metrics.catalogue import Metric

PREFIX: Final = "flower_"

ENTRIES: Final = Metric(
    "singleton_entries", "gauge", "Entries of the schedule: on time, late or paused.", ("state",)
)
STORE_UP: Final = Metric("singleton_store_up", "gauge", "1 if the lease store answered this scrape.")
HEARD: Final = (
    all_.RUNS_ENDED,
    all_.RUN_DURATION,
    all_.RUNS_SKIPPED,
    all_.COPIES_IGNORED,
    all_.DEAD_LETTERS_SENT,
)
LOOKED_AT: Final = (
    STORE_UP,
    all_.MEMBERS,
    ENTRIES,
    all_.DEAD_LETTERS,
    all_.OUTBOX,
    all_.OUTBOX_OLDEST,
)
METRICS: Final = tuple(replace(each, name=PREFIX + each.name) for each in (*HEARD, *LOOKED_AT))
