"""Signals to connect to: see each for the facts it carries."""

from celery_singleton_lock.core.signals import (
    Signal,
    lease_lost,
    lease_overdue,
    run_dead_lettered,
    run_retrying,
    run_skipped,
    slot_missed,
)

__all__ = [
    "Signal",
    "lease_lost",
    "lease_overdue",
    "run_dead_lettered",
    "run_retrying",
    "run_skipped",
    "slot_missed",
]
