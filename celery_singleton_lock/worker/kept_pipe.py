"""One pipeline to a Redis broker for all that a worker writes there about its messages.

kombu makes a new client and a new pipeline for each message that it receives, and again for each that
it acknowledges: that takes longer than to get, and to give back, a lease.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Pipe = Any  # redis-py's, or kombu's that prefixes keys
Acquire = Callable[..., AbstractContextManager[Pipe]]


def keep_pipe(channel: Any) -> Acquire:
    """Have the channel of a consumer use one pipeline. Returns what hands it out; twice is once.

    Only for a consumer whose messages are received and acknowledged by one thread.
    """
    qos = channel.qos
    if not isinstance(qos.pipe_or_acquire, _KeptPipe):
        qos.pipe_or_acquire = _KeptPipe(channel, qos.pipe_or_acquire)
    acquire: Acquire = qos.pipe_or_acquire
    return acquire


class _KeptPipe:
    def __init__(self, channel: Any, make: Acquire) -> None:
        self._channel = channel
        self._make = make
        self._pipe: Pipe = None

    def __call__(self, pipe: Pipe = None, client: Any = None) -> AbstractContextManager[Pipe]:
        if pipe is not None or client is not None:
            return self._make(pipe, client)
        if self._pipe is None:
            with self._channel.conn_or_acquire() as own:
                self._pipe = own.pipeline()
        # Commands are in it while it is in use: a signal handler, which gives messages back in a cold
        # shutdown, may come in between.
        return self._make() if len(self._pipe) else nullcontext(self._pipe)
