"""What the workers of pytest-celery execute. Its source is copied to where they run."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task

from celery_singleton_lock import SingletonTask


@shared_task(base=SingletonTask, bind=True, name="matrix.add")  # type: ignore[untyped-decorator]
def add(self: Any, a: int, b: int) -> dict[str, int]:
    return {"sum": a + b, "fence": self.current_run.fence}


@shared_task(base=SingletonTask, bind=True, name="matrix.count", overlap="allow")  # type: ignore[untyped-decorator]
def count(self: Any, key: str) -> int:
    return int(self.backend.client.incr(key))


@shared_task(base=SingletonTask, bind=True, name="matrix.wait", overlap="allow")  # type: ignore[untyped-decorator]
def wait(self: Any, key: str) -> int:
    """Until somebody says so. Each execution leaves its fence behind."""
    client = self.backend.client
    client.rpush(f"{key}:fences", self.current_run.fence)
    while not client.exists(f"{key}:go"):
        time.sleep(0.05)
    return int(self.current_run.fence)
