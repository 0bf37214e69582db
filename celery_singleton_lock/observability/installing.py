"""Where the processes of an app begin to be observed."""

from __future__ import annotations

from typing import Any

from . import logs


def observe(app: Any) -> None:
    """Called when a task or a scheduler of ours is made. No I/O, and no settings are read; twice is
    once."""
    logs.attach(app)
    # By their names: who only calls tasks needs nothing of a worker.
    app.steps["worker"].add("celery_singleton_lock.observability.worker_steps:ObservingStep")
    app.steps["consumer"].add("celery_singleton_lock.observability.worker_steps:PulseStep")
