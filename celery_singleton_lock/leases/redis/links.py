"""How a batch of commands gets to a server and back.

Connections are used below redis-py's `execute_command`: one write and one read a batch, with no retry
but our own, so that a call's time is known.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from redis import Redis
from redis.connection import ConnectionPool
from redis.exceptions import ConnectionError, NoScriptError, ResponseError, TimeoutError

from .scripts import MOST_KEYS, Command, chunks, pack

Connection = Any  # redis-py is mostly untyped.
Reply = Any  # What the server answered; a `ResponseError` stands in its place and is not raised.
PubSub = Any
Client = Any
Part = tuple[Sequence[int], Reply]
"""The places of some keys of a command, and the reply for these."""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself. ACLs may hide it: then the run id is empty."""

    run_id: str
    may_evict: bool


OnServer = Callable[[int, ServerFacts], None]
"""Told (shard, server) of who answered; a shard is a part of the keys."""


class Link(Protocol):
    lists: int
    """How many indexes to spread what is listed over."""

    def exchange(self, command: Command) -> list[Part]:
        """Send it in parts that a server can bear, all of them, then read all. Raises redis-py's
        connection errors."""

    def start(self, command: Command) -> Callable[[], list[Part]]:
        """Send it, ahead of all that this thread sends later, and return what waits for the reply."""

    def scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        """The names of the keys that match, in pages."""

    def pubsub(self) -> PubSub: ...

    def clients(self) -> list[Client]:
        """One for each master, for a look at it."""

    def close(self) -> None: ...


class Started:
    """A command that was sent, and whose reply nobody has waited for yet."""

    __slots__ = ("command", "connection", "error", "reply")

    def __init__(self, command: Command, connection: Connection) -> None:
        self.command: Final = command
        self.connection: Connection | None = connection
        """None: the reply was read, or will not come that way."""
        self.reply: Reply = None
        self.error: BaseException | None = None


class PoolLink:
    """One server at a time: a single one, or the master that Sentinel names."""

    lists = 1

    def __init__(self, pool: ConnectionPool, on_server: OnServer) -> None:
        self._pool = pool
        self._on_server = on_server
        # Lent by the pool for good. It asks of each whether it is still open, and keeps books: that
        # is as much work as the rest of a call, and a connection that was closed is found out anyway.
        self._idle: list[Connection] = []
        self._started: dict[tuple[int, int], Started] = {}
        """At most one for a thread of a process."""

    def exchange(self, command: Command) -> list[Part]:
        places = range(len(command.keys))
        if len(places) <= MOST_KEYS:
            return [(places, self._exchange([command])[0])]
        shares = chunks(places)
        replies = self._exchange([command.only(share) for share in shares])
        return list(zip(shares, replies, strict=True))

    def start(self, command: Command) -> Callable[[], list[Part]]:
        me = _me()
        if me in self._started:
            self._exchange(())
        connection = self._take()
        # A server that does not know the script has to be told, by then behind what was sent later.
        if command.script.sha not in connection.known or len(command.keys) > MOST_KEYS:
            self._idle.append(connection)
            parts = self.exchange(command)
            return lambda: parts
        try:
            send(connection, [command])
        except BaseException as error:
            self._drop(connection)
            if not isinstance(error, ConnectionError):
                raise
            parts = self.exchange(command)
            return lambda: parts
        started = self._started[me] = Started(command, connection)
        return lambda: [(range(len(command.keys)), self._reply_to(started))]

    def _reply_to(self, started: Started) -> Reply:
        if started.connection is not None:
            self._exchange(())
        if started.error is not None:
            raise started.error
        return started.reply

    def _exchange(self, commands: Sequence[Command]) -> list[Reply]:
        started = self._started.pop(_me(), None) if self._started else None
        try:
            return self._try_exchange(commands, started)
        except TimeoutError:
            raise
        except ConnectionError:
            # Most often a kept connection to a server that was restarted since; then all of them are.
            # Every script may be run twice by the same owner, so a lost reply does no harm.
            self._disconnect_idle()
            return self._try_exchange(commands, started)

    def _try_exchange(self, commands: Sequence[Command], started: Started | None) -> list[Reply]:
        """What was started goes first, and its reply is read first."""
        awaited = commands if started is None else [started.command, *commands]
        if started is None or started.connection is None:
            connection, unsent = self._take(), awaited
        else:
            connection, unsent = started.connection, commands
            started.connection = None
        try:
            if unsent:
                send(connection, unsent)
            replies = receive(connection, awaited)
            self._on_server(0, connection.server)
        except BaseException as error:
            # Whatever it is (an abort from outside, too), replies may be left unread: whoever got
            # this connection next would take them for its own.
            self._drop(connection)
            if started is not None:
                started.error = error
            raise
        self._idle.append(connection)
        if started is not None:
            started.reply, *replies = replies
            started.error = None
        return replies

    def _drop(self, connection: Connection) -> None:
        connection.disconnect()
        self._pool.release(connection)

    def _take(self) -> Connection:
        while (connection := self._pop_idle()) is not None:
            # A forked child inherits its parent's, and must not speak on them.
            if connection.pid == os.getpid():
                return connection
        return self._pool.get_connection()

    def _disconnect_idle(self) -> None:
        while (connection := self._pop_idle()) is not None:
            self._drop(connection)

    def _pop_idle(self) -> Connection | None:
        # Not "if self._idle": another thread may be quicker.
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        return scan_server(Redis(connection_pool=self._pool), pattern)

    def pubsub(self) -> PubSub:
        return Redis(connection_pool=self._pool).pubsub(ignore_subscribe_messages=True)

    def clients(self) -> list[Client]:
        return [Redis(connection_pool=self._pool)]

    def close(self) -> None:
        self._pool.disconnect()


def _me() -> tuple[int, int]:
    """This thread of this process: a forked child inherits what its parent has sent."""
    return os.getpid(), threading.get_ident()


def log_in(connection: Connection) -> None:
    """For redis-py to call on every new connection: log in, then learn which server this is."""
    connection.on_connect()
    connection.known = set()
    connection.server = ask_server(connection)


def ask_server(connection: Connection) -> ServerFacts:
    facts: dict[bytes, bytes] = {}
    for section in ("server", "memory"):
        connection.send_command("INFO", section, check_health=False)
        reply = _read(connection)
        if not isinstance(reply, ResponseError):
            lines = (line.partition(b":") for line in reply.splitlines())
            facts.update((name, value) for name, _, value in lines)
    return ServerFacts(
        run_id=facts.get(b"run_id", b"").decode(),
        may_evict=int(facts.get(b"maxmemory", 0)) > 0
        and facts.get(b"maxmemory_policy", b"noeviction") != b"noeviction",
    )


@contextmanager
def borrowed(pool: ConnectionPool) -> Iterator[Connection]:
    connection = pool.get_connection()
    try:
        yield connection
    except BaseException:
        # Whatever it is (an abort from outside, too), replies may be left unread: whoever got this
        # connection next would take them for its own.
        connection.disconnect()
        raise
    finally:
        pool.release(connection)


def send(connection: Connection, commands: Sequence[Command]) -> None:
    _write(connection, [command.by_digest() for command in commands])


def receive(connection: Connection, commands: Sequence[Command]) -> list[Reply]:
    replies = [_read(connection) for _ in commands]
    unknown = [at for at, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
    if unknown:
        # A restart, a failover or SCRIPT FLUSH. The first EVAL teaches the server the script.
        taught = {commands[at].script: at for at in reversed(unknown)}
        _write(
            connection,
            [
                commands[at].by_source()
                if taught[commands[at].script] == at
                else commands[at].by_digest()
                for at in unknown
            ],
        )
        for at in unknown:
            replies[at] = _read(connection)
    connection.known.update([command.script.sha for command in commands])
    return replies


def send_asking(connection: Connection, command: Command) -> Reply:
    """One command to a Cluster node that is about to own its slot."""
    _write(connection, [pack([b"ASKING"]), command.by_source()])
    _read(connection)
    return _read(connection)


def _write(connection: Connection, packed: Sequence[bytes]) -> None:
    connection.send_packed_command([b"".join(packed)], check_health=False)


def _read(connection: Connection) -> Reply:
    try:
        return connection.read_response()
    except ResponseError as error:
        return error


def scan_server(server: Any, pattern: bytes) -> Iterator[list[bytes]]:
    cursor = 0
    while True:
        cursor, keys = server.scan(cursor, match=pattern, count=500)
        if keys:
            yield keys
        if cursor == 0:
            return
