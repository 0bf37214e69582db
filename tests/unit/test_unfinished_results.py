"""What a worker had half read of a child's result is not lost with the connection to the broker."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from celery.concurrency.asynpool import ResultHandler
from kombu.asynchronous import Hub

from celery_singleton_lock.worker.unfinished_results import UnfinishedResults

CHILD = object()


class Loop:
    """That of a worker, with Celery's own reader of results, for one child."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.results, self._child_writes = os.pipe()
        os.set_blocking(self.results, False)
        self.children: dict[int, Any] = {self.results: CHILD}
        self.got: list[Any] = []
        self._handler = ResultHandler.__new__(ResultHandler)
        self._handler.fileno_to_outq = self.children
        self._handler.on_state_change = self.got.append
        self._handler.register_with_event_loop(self.hub)

    def register(self) -> None:
        """As the pool does for each connection."""
        self.hub.add_reader(self.results, self._handler.handle_event, self.results)

    def turn(self) -> None:
        self.hub.call_soon(lambda: None)  # otherwise it waits for somebody to write
        next(self.hub.create_loop())

    def child_writes(self, data: bytes) -> None:
        os.write(self._child_writes, data)

    def close(self) -> None:
        self.hub.close()
        os.close(self.results)
        os.close(self._child_writes)


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


def written(message: Any) -> bytes:
    body = pickle.dumps(message)
    return struct.pack("!i", len(body)) + body


def test_result_that_was_half_read_is_read_to_its_end_on_the_next_connection(loop: Loop) -> None:
    results = UnfinishedResults(loop.hub, loop.children)
    loop.register()
    data = written("x" * 1000)
    loop.child_writes(data[:100])
    loop.turn()
    loop.hub.reset()  # the connection is lost
    # Who shuts the worker down now finds it, and reads it to its end.
    assert loop.results in loop.hub.readers
    loop.register()
    results.resume()
    loop.child_writes(data[100:] + written("next"))
    while len(loop.got) < 2:
        loop.turn()
    assert loop.got == ["x" * 1000, "next"]


def test_child_that_took_the_place_of_another_is_read_from_the_beginning(loop: Loop) -> None:
    results = UnfinishedResults(loop.hub, loop.children)
    loop.register()
    loop.child_writes(written("lost")[:6])
    loop.turn()
    loop.hub.reset()
    loop.children[loop.results] = object()
    loop.register()
    results.resume()
    loop.child_writes(written("new"))
    loop.turn()
    assert loop.got == ["new"]
