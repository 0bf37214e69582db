"""What workers tell in their events, heard as it happens: what begins and ends between two looks is
seen by nobody else. Where a broker or a worker has no events, the looks are all there is."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

from celery.events.state import State

from celery_singleton_lock.cli.times import spoken
from celery_singleton_lock.worker.task import SingletonTask

from .happening import Happening

MOST_WAITING: Final = 1000
TRY_AGAIN_S: Final = 5.0
_LISTEN_S: Final = 1.0
_ENDS: Final = {
    "task-succeeded": ("succeeded", ""),
    "task-failed": ("failed", "red"),
    "task-retried": ("retried", "yellow"),
    "task-revoked": ("revoked", "yellow"),
    "task-rejected": ("rejected", "red"),
    "task-skipped": ("skipped", "yellow"),
    "task-lease-lost": ("lease lost", "red"),
    "task-dead-lettered": ("dead letter", "red"),
    "singleton-copy": ("copy ignored", "dim"),
}
_ONLY_OURS: Final = ("task-skipped", "task-lease-lost", "task-dead-lettered", "singleton-copy")
_LONGEST: Final = 200


class Ear:
    """Listens in a thread of its own, as long as the block lasts."""

    def __init__(self, app: Any) -> None:
        self._app = app
        # Most events have an id alone: this knows what it is the id of.
        self._state = State(max_tasks_in_memory=10_000)
        self._heard: deque[Happening] = deque(maxlen=MOST_WAITING)
        self._stopping = threading.Event()

    def __enter__(self) -> Ear:
        self._app.loader.import_default_modules()
        threading.Thread(target=self._run, name="singleton-watch-events", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()

    def take(self) -> list[Happening]:
        """What was heard since it was last asked for, oldest first."""
        return list(self._taken())

    def _taken(self) -> Iterator[Happening]:
        while self._heard:
            yield self._heard.popleft()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listen()
            except Exception:  # noqa: BLE001 - of any broker, which may know no events at all
                self._stopping.wait(TRY_AGAIN_S)

    def _listen(self) -> None:
        with self._app.connection_for_read() as connection:
            receiver = self._app.events.Receiver(connection, handlers={"*": self.hear})
            while not self._stopping.is_set():
                try:
                    receiver.capture(limit=None, timeout=_LISTEN_S, wakeup=False)
                except socket.timeout:  # noqa: UP041 - what kombu raises, in its words
                    continue

    def hear(self, event: dict[str, Any]) -> None:
        self._state.event(event)
        if event["type"] not in _ENDS or not event.get("uuid"):
            return
        task = self._state.tasks.get(event["uuid"])
        name = event.get("name") or (task.name if task is not None else None)
        if event["type"] in _ONLY_OURS or isinstance(self._app.tasks.get(name), SingletonTask):
            self._heard.append(_happening(event, name or event["uuid"]))


def _happening(event: dict[str, Any], name: str) -> Happening:
    what, colour = _ENDS[event["type"]]
    text = f"{what}: {name} on {event['hostname']}"
    if event.get("runtime") is not None:
        text += f", took {spoken(float(event['runtime']))}"
    why = event.get("reason") or event.get("exception")
    if why:
        text += f": {str(why)[:_LONGEST]}"
    at = datetime.fromtimestamp(event["timestamp"], UTC)
    return Happening(at, text, colour, run=event["uuid"], is_told=True)
