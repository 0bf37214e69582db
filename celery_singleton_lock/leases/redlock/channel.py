"""One kept connection to a node, on which replies may be outstanding.

redis-py connects and logs in. After that its socket is used as it is: redis-py would connect again when
a connection is lost, perhaps to another life of the server, and it reads by waiting, which must not be
done for one node while others answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from redis.exceptions import ConnectionError

from celery_singleton_lock.leases.redis.links import Connection

Reply = Any
"""Bytes, an int, None, a list of them, or a `Refusal`."""

_CHUNK: Final = 1 << 16


class Refusal(str):
    """An error that the server answered."""

    __slots__ = ()


class Channel:
    """`owed`: how many replies are still to come that nobody waits for, since `owing_since`."""

    __slots__ = (
        "_buffer", "_connection", "_pending", "_receive",
        "fd", "owed", "owing_since", "pid", "run_id", "send",
    )  # fmt: skip

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        socket = connection._sock
        self._receive = socket.recv
        self._pending: Callable[[], int] | None = getattr(socket, "pending", None)
        self.send: Callable[[bytes], None] = socket.sendall
        self.fd: int = socket.fileno()
        self._buffer = bytearray()
        self.run_id: str = connection.server.run_id
        self.pid = os.getpid()
        self.owed = 0
        self.owing_since = 0.0

    def receive(self) -> list[Reply]:
        """What has arrived, complete replies only; waits if nothing has. Raises `OSError`, and
        `ConnectionError` of redis-py."""
        data: bytes = self._receive(_CHUNK)
        while self._pending is not None and data and self._pending():
            # TLS has decrypted more, which no poll would tell of.
            data += self._receive(_CHUNK)
        if not data:
            raise ConnectionError("the server closed the connection")
        if not self._buffer and data.count(b"\r\n") == 2 and data[:1] == b"$" and data[-2:] == b"\r\n":
            # One short text, whole: nearly always.
            replies = [data[data.index(b"\r\n") + 2 : -2]]
        else:
            self._buffer += data
            replies, read = parse(self._buffer)
            del self._buffer[:read]
        if self.owed:
            skipped = min(self.owed, len(replies))
            self.owed -= skipped
            del replies[:skipped]
        return replies

    def ask(self, packed: bytes, count: int = 1) -> list[Reply]:
        """Send, and wait for so many replies."""
        self.send(packed)
        replies: list[Reply] = []
        while len(replies) < count:
            replies += self.receive()
        return replies

    def close(self) -> None:
        self._connection.disconnect()


def parse(buffer: bytearray) -> tuple[list[Reply], int]:
    """The complete replies at the beginning of `buffer`, and how many bytes these are."""
    replies: list[Reply] = []
    at = 0
    while at < len(buffer):
        found = _parse_one(buffer, at)
        if found is None:
            break
        reply, at = found
        replies.append(reply)
    return replies, at


def _parse_one(buffer: bytearray, at: int) -> tuple[Reply, int] | None:
    """None: there is more to come."""
    end = buffer.find(b"\r\n", at)
    if end < 0:
        return None
    kind, line, at = buffer[at], bytes(buffer[at + 1 : end]), end + 2
    if kind == 0x24:  # $: so many bytes
        size = int(line)
        if size < 0:
            return None, at
        return (bytes(buffer[at : at + size]), at + size + 2) if len(buffer) >= at + size + 2 else None
    if kind == 0x2B:  # +
        return line, at
    if kind == 0x3A:  # :
        return int(line), at
    if kind == 0x2D:  # -
        return Refusal(line.decode(errors="replace")), at
    items: list[Reply] = []
    for _ in range(int(line)):
        found = _parse_one(buffer, at)
        if found is None:
            return None
        item, at = found
        items.append(item)
    return items, at


def first_refusal(replies: Sequence[Reply]) -> Refusal | None:
    for reply in replies:
        if isinstance(reply, Refusal):
            return reply
    return None
