"""What Flower hears of singleton runs, counted. Every other task is none of our business here."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from flower.events import Events

from celery_singleton_lock.observability.metrics import catalogue as all_
from celery_singleton_lock.observability.metrics.counts import Counts
from celery_singleton_lock.observability.metrics.names import Names
from celery_singleton_lock.worker.task import SingletonTask

_OUTCOMES: Final = {
    "task-succeeded": "succeeded",
    "task-failed": "failed",
    "task-retried": "retried",
    "task-revoked": "revoked",
    "task-rejected": "rejected",
    "task-lease-lost": "lost",
}
"""As the workers call them. That one begins is not counted: Celery says so also of a message that is
then skipped, or kept for later."""
_ONLY_OURS: Final = ("task-lease-lost", "task-skipped", "task-dead-lettered", "singleton-copy")


class Heard:
    """Told of every event, after Flower has taken it in. For its event loop only."""

    def __init__(self, app: Any) -> None:
        self.counts: Final = Counts()
        self._app = app
        self._tasks = Names()

    def take_in(self, state: Any, event: dict[str, Any]) -> None:
        # Most events have an id alone: what it is the id of was said when the message was received.
        known = state.tasks.get(event.get("uuid"))
        name = event.get("name") or (known.name if known is not None else None)
        if event["type"] in _ONLY_OURS or isinstance(self._app.tasks.get(name), SingletonTask):
            self._count(event, self._tasks.shown(name))

    def _count(self, event: dict[str, Any], task: str) -> None:
        kind, reason = event["type"], str(event.get("reason") or "")
        if kind in _OUTCOMES:
            self.counts.add(all_.RUNS_ENDED, task, _OUTCOMES[kind])
        elif kind == "task-skipped":
            self.counts.add(all_.RUNS_SKIPPED, task, reason)
        elif kind == "task-dead-lettered":
            self.counts.add(all_.DEAD_LETTERS_SENT, task, reason)
        elif kind == "singleton-copy":
            self.counts.add(all_.COPIES_IGNORED, task)
        if kind == "task-succeeded" and event.get("runtime") is not None:
            self.counts.observe(all_.RUN_DURATION, task, value=float(event["runtime"]))


class CountedEvents(Events):  # type: ignore[misc]
    """In place of Flower's own, which says nothing to others of what it receives."""

    def __init__(self, capp: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(capp, *args, **kwargs)
        self.heard: Final = Heard(capp)

    def on_event(self, event: dict[str, Any]) -> None:
        super().on_event(event)
        # They are called in this order, so that the state knows of it.
        self.io_loop.add_callback(partial(self._take_in, event))

    def _take_in(self, event: dict[str, Any]) -> None:
        # A state that was kept from before takes the place of this one's.
        self.heard.take_in(self.state, event)
