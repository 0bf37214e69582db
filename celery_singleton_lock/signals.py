"""Signals to connect to: see each for the facts it carries."""

from celery_singleton_lock.core.signals import Signal, run_dead_lettered, slot_missed

__all__ = ["Signal", "run_dead_lettered", "slot_missed"]
