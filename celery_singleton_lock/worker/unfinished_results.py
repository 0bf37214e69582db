"""Results of a prefork pool that were half read when the connection to the broker was lost.

The loop of a worker reads the results of its children bit by bit. When the broker goes away, Celery
drops whatever the loop was at, and reads on in the middle of a result as though a new one began there:
it understands nothing of that child any more, sends it nothing, and waits for it for ever at the end.
A result is longer than what a pipe holds as soon as it is an exception with a traceback.
"""

from __future__ import annotations

from inspect import isgenerator
from typing import Any

from celery.bootsteps import StartStopStep


class UnfinishedResultsStep(StartStopStep):  # type: ignore[misc]
    """Carries them over to the next connection."""

    label = "Unfinished results"
    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        self._results: UnfinishedResults | None = None

    def register_with_event_loop(self, c: Any, hub: Any) -> None:
        """Called for each connection, after the pool has registered itself."""
        children = getattr(getattr(c.pool, "_pool", None), "_fileno_to_outq", None)
        if children is None:
            return
        if self._results is None:
            self._results = UnfinishedResults(hub, children)
        self._results.resume()


class UnfinishedResults:
    """Of one loop. `children`: the processes of the pool, by the descriptor of their results."""

    def __init__(self, hub: Any, children: dict[int, Any]) -> None:
        self._hub = hub
        self._children = children
        self._begun: dict[int, tuple[Any, Any]] = {}
        self._reset = hub.reset
        hub.reset = self._remember_and_reset

    def resume(self) -> None:
        """Read on where the last loop was."""
        begun, self._begun = self._begun, {}
        for descriptor, (child, reading) in begun.items():
            # Another one may have taken its place, and its number.
            if self._children.get(descriptor) is child:
                self._hub.add_reader(descriptor, reading)

    def _remember_and_reset(self) -> None:
        for descriptor, reader in self._hub.readers.items():
            reading = reader[0] if reader is not None else None
            if isgenerator(reading) and descriptor in self._children:
                self._begun[descriptor] = self._children[descriptor], reading
        self._reset()
        # Whoever ends the worker before there is a connection again looks for them there.
        for descriptor, (_, reading) in self._begun.items():
            self._hub.add_reader(descriptor, reading)
