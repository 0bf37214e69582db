"""What the first task needs is made in the parent of a pool, before it has children."""

from __future__ import annotations

from typing import Any

from celery.bootsteps import StartStopStep

from .parts import parts_of


class PreparingStep(StartStopStep):  # type: ignore[misc]
    """Of the worker. Else each child would import it: with a ledger that takes half a second."""

    label = "Preparing"
    # What is counted must be shared with the children, too.
    requires = ("celery_singleton_lock.observability.worker_steps:ObservingStep",)

    def __init__(self, w: Any, **kwargs: Any) -> None:
        super().__init__(w, **kwargs)
        # Steps are made before any is started, and so before the pool forks.
        parts_of(w.app)
