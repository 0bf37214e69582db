"""One client to a Redis broker for all that is done with a channel.

kombu makes a new one for each message that it publishes, receives or acknowledges. That takes as long
as the round trip that it is made for: a tenth of what a call costs, and of what a worker does.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

Client = Any  # redis-py's, or kombu's that prefixes keys


def keep_client(channel: Any) -> None:
    """Twice is once. On other brokers than Redis there is nothing to keep."""
    if hasattr(channel, "conn_or_acquire") and not isinstance(channel.conn_or_acquire, _KeptClient):
        channel.conn_or_acquire = _KeptClient(channel)


def client_of(channel: Any) -> Client:
    with channel.conn_or_acquire() as client:
        return client


class _KeptClient:
    """In the place of the channel's `conn_or_acquire`. A client has no state but its pool of
    connections, so it may be used by many at a time, and in the middle of another's use."""

    def __init__(self, channel: Any) -> None:
        self._channel = channel
        self._make = channel.conn_or_acquire
        self._client: Client = None
        self._pool: Any = None

    def __call__(self, client: Client = None) -> AbstractContextManager[Client]:
        if client is not None:
            return nullcontext(client)
        # The channel has another pool after a fork, and when its connections were closed.
        pool = self._channel.pool
        if pool is not self._pool:
            with self._make() as made:
                self._client, self._pool = made, pool
        return nullcontext(self._client)
