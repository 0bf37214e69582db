"""Puts a class before that of a store: it sees the calls, and what only that store can do stays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from celery_singleton_lock.leases import LeaseStore


def put_before(store: LeaseStore, before: Any) -> None:
    """The same object is from now on of the class `before` as well. Twice is once."""
    if not isinstance(store, before):
        store.__class__ = _both(before, type(store))


@lru_cache
def _both(before: Any, kind: Any) -> type[LeaseStore]:
    return type(f"{before.__name__}Over{kind.__name__}", (before, kind), {})
