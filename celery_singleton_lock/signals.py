"""Signals to connect to: see each for the facts it carries."""

from celery_singleton_lock.core.signals import Signal, slot_missed

__all__ = ["Signal", "slot_missed"]
