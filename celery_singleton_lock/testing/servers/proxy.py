"""A TCP proxy that misbehaves on request."""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from .ports import free_port

_CHUNK_BYTES = 65_536
_ANSWER_TIMEOUT_S = 5.0
_PORT_ATTEMPTS = 5


class TcpProxy:
    """Passes connections to a port of 127.0.0.1 on to another, until told to hurt them.

    A fault is in effect when its call returns. Faults add up until `heal`. Like a server, the
    proxy belongs to the process that started it: in a forked child `stop` does nothing and the
    faults raise `RuntimeError`.
    """

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self._relay: _Relay | None = None
        self._thread: threading.Thread | None = None
        self._owner_pid = 0

    @property
    def port(self) -> int:
        """Where clients connect, kept until `stop`."""
        return self._running_relay().port

    def start(self) -> Self:
        """Return when connections are accepted; do nothing if the proxy runs."""
        if self._relay is None:
            listening: Future[_Relay] = Future()
            self._thread = threading.Thread(
                target=lambda: asyncio.run(_run_relay(self.upstream_port, listening)),
                name="tcp-proxy",
                daemon=True,
            )
            self._thread.start()
            self._relay = listening.result(_ANSWER_TIMEOUT_S)
            self._owner_pid = os.getpid()
        return self

    def stop(self) -> None:
        """Reset all connections and close; in any state, any number of times."""
        if self._relay is None or self._thread is None or self._owner_pid != os.getpid():
            return
        self._do(_Relay.end)
        self._thread.join()
        self._relay = self._thread = None

    def delay(self, seconds: float) -> None:
        """Hold back each chunk that comes from the server for so long."""
        self._do(lambda relay: relay.delay(seconds))

    def blackhole(self) -> None:
        """Accept connections and bytes, and pass nothing on, in neither direction."""
        self._do(_Relay.swallow)

    def cut(self) -> None:
        """Reset all present connections; new ones are served."""
        self._do(_Relay.reset_all)

    def refuse(self) -> None:
        """Have connects refused; present connections go on."""
        self._do(_Relay.close)

    def heal(self) -> None:
        """Serve again on the same port; connections that have lost bytes are reset."""
        self._do(_Relay.heal)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _running_relay(self) -> _Relay:
        if self._relay is None:
            raise RuntimeError("the proxy is not running: call start() first")
        return self._relay

    def _do(self, step: Callable[[_Relay], Coroutine[Any, Any, None]]) -> None:
        relay = self._running_relay()
        if self._owner_pid != os.getpid():  # a forked child has no thread to do it
            raise RuntimeError(f"the proxy belongs to process {self._owner_pid}, not to this one")
        asyncio.run_coroutine_threadsafe(step(relay), relay.loop).result(_ANSWER_TIMEOUT_S)


async def _run_relay(upstream_port: int, listening: Future[_Relay]) -> None:
    try:
        relay = _Relay(upstream_port)
        await relay.listen_anywhere()
    except BaseException as error:
        listening.set_exception(error)
        raise
    listening.set_result(relay)
    await relay.ended.wait()


class _Relay:
    """The proxy's inside; used in its event loop only."""

    def __init__(self, upstream_port: int) -> None:
        self.port = 0
        self.loop = asyncio.get_running_loop()
        self.ended = asyncio.Event()
        self._upstream_port = upstream_port
        self._listener: asyncio.Server | None = None
        self._links: set[_Link] = set()
        self._delay_s = 0.0
        self._swallows = False

    async def listen_anywhere(self) -> None:
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self.port = free_port()
            try:
                await self._listen()
                return
            except OSError:  # taken meanwhile
                if attempt == _PORT_ATTEMPTS:
                    raise

    async def delay(self, seconds: float) -> None:
        self._delay_s = seconds

    async def swallow(self) -> None:
        self._swallows = True

    async def reset_all(self) -> None:
        for link in self._links:
            link.reset()

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def heal(self) -> None:
        self._delay_s = 0.0
        self._swallows = False
        for link in self._links:
            if link.has_lost_bytes:
                link.reset()
        if self._listener is None:
            await self._listen()

    async def end(self) -> None:
        await self.close()
        await self.reset_all()
        self.ended.set()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        # Cancelled at the end of the loop: Python 3.11 would print that as an error.
        with suppress(asyncio.CancelledError):
            await self._pass_on(reader, client)

    async def _pass_on(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        link = _Link(client)
        self._links.add(link)
        try:
            if self._swallows:
                link.has_lost_bytes = True
                await self._pump(link, reader, None)
            else:
                await self._connect(link, reader)
        except* OSError:
            link.reset()  # one side is gone, and the other is to learn it the same way
        finally:
            link.close()
            self._links.discard(link)

    async def _connect(self, link: _Link, from_client: asyncio.StreamReader) -> None:
        from_server, server = await asyncio.open_connection("127.0.0.1", self._upstream_port)
        client = link.sides[0]
        link.sides.append(server)
        async with asyncio.TaskGroup() as pumps:
            pumps.create_task(self._pump(link, from_client, server))
            pumps.create_task(self._pump(link, from_server, client, delayed=True))

    async def _pump(
        self,
        link: _Link,
        source: asyncio.StreamReader,
        target: asyncio.StreamWriter | None,
        *,
        delayed: bool = False,
    ) -> None:
        """Pass on what comes, and in the end that it ended; a target of None gets nothing."""
        while True:
            chunk = await source.read(_CHUNK_BYTES)
            if delayed and self._delay_s:
                await asyncio.sleep(self._delay_s)
            if self._swallows or target is None:
                link.has_lost_bytes = True
            elif chunk:
                target.write(chunk)
                await target.drain()
            elif target.can_write_eof():
                target.write_eof()
            if not chunk:
                return


class _Link:
    """A client's connection and, unless it was accepted by a blackhole, ours to the server."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.sides = [client]
        self.has_lost_bytes = False

    def reset(self) -> None:
        close_by_reset = struct.pack("ii", 1, 0)  # SO_LINGER: on, for no time
        for side in self.sides:
            if not side.transport.is_closing():
                connection = side.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, close_by_reset)
                side.transport.abort()

    def close(self) -> None:
        for side in self.sides:
            side.close()
