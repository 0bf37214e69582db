"""Counting how often a call waits for the network, at the sockets: below whatever makes the call."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch


class RoundTrips:
    """A round trip is some writing, then some reading. How many writes and reads does not matter."""

    def __init__(self) -> None:
        self.count = 0
        self._has_written = False

    def write(self) -> None:
        self._has_written = True

    def read(self) -> None:
        self.count += self._has_written
        self._has_written = False


@contextmanager
def counted_round_trips() -> Iterator[RoundTrips]:
    """Count those of all sockets of this process, inside the block. One thread at a time."""
    trips = RoundTrips()
    with (
        patch.object(socket.socket, "sendall", _telling(socket.socket.sendall, trips.write)),
        # A look whether there is something to read raises when there is not, and does not count.
        patch.object(socket.socket, "recv", _telling(socket.socket.recv, trips.read)),
    ):
        yield trips


def _telling(method: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    def method_that_tells(*args: Any) -> Any:
        result = method(*args)
        tell()
        return result

    return method_that_tells
