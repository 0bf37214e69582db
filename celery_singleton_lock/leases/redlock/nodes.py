"""The nodes over the network: all are asked at the same time, and none is waited for in vain.

The calling thread writes to all nodes and polls for their answers. Measured with five PINGs at once on
one host, that took 80 µs, with a thread a node 250 µs, with asyncio in a thread of its own 215 µs: each
wakes threads that have little to do. Only connecting is done in threads: a node that is cut off takes a
whole timeout to be found out.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import select
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from redis.exceptions import RedisError

from celery_singleton_lock.leases.redis.links import Connection
from celery_singleton_lock.leases.redis.scripts import Command, pack

from .channel import Channel, Refusal, Reply, first_refusal
from .incarnation import LENGTH, Token
from .quorum import Heard, Size

logger = logging.getLogger(__name__)

TOKEN: Final = b"\0" * LENGTH
"""Stands in a packed command for the incarnation of the node that it is sent to. A NUL is nowhere
else in it."""

GRACE: Final = 0.01
"""Seconds that the others have once a majority has answered; longer if the majority took longer."""

MOST_OWED: Final = 1000
LONGEST_REST: Final = 2.0


class Parcel:
    """Commands for a node, packed once for all nodes that are sent the same.

    `is_answered`: False if nobody will hear that the server does not know the script.
    """

    __slots__ = ("commands", "packed")

    def __init__(self, commands: Sequence[Command], *, is_answered: bool = True) -> None:
        self.commands = commands
        self.packed = b"".join(
            [command.by_digest() if is_answered else command.by_source() for command in commands]
        )


@dataclass(slots=True)
class Node:
    number: int
    name: str
    connect: Callable[[], Connection]
    key: bytes
    """Where its incarnation is kept."""
    token: Token | None = None
    """The incarnation in which it takes part, as far as is known; None: it does not, or is unknown."""
    is_out: bool = False
    """It answers, and must not take part: it has lost its memory."""
    is_blank: bool = False
    """It is out, and has never taken part, or has forgotten that it did."""
    trouble: str = "not asked yet"
    failures: int = 0
    next_try: float = 0.0
    idle: list[Channel] = field(default_factory=list)

    def open(self) -> Channel:
        connection = self.connect()
        connection.connect()
        channel = Channel(connection)
        try:
            self.survey(channel)
        except BaseException:
            channel.close()
            raise
        return channel

    def survey(self, channel: Channel) -> Token | None:
        """Learn whether the node takes part, and in which incarnation. Waits for it."""
        [kept] = channel.ask(pack([b"GET", self.key]))
        if isinstance(kept, Refusal):
            raise ConnectionError(kept)
        if not channel.run_id:
            raise ConnectionError("the server does not tell its run id: allow +info to this user")
        token = Token.read(kept)
        is_in = token is not None and token.run_id == channel.run_id
        self.is_blank = token is None
        self.token, self.is_out = (token if is_in else None), not is_in
        self.trouble = "" if is_in else "it lost its memory, and is not repaired yet"
        return self.token

    def take_idle(self, patience: float) -> Channel | None:
        while self.idle:
            try:
                channel = self.idle.pop()
            except IndexError:  # another thread was quicker
                return None
            # A forked child inherits its parent's, and must not speak on them.
            if channel.pid != os.getpid():
                continue
            is_late = channel.owed and time.monotonic() - channel.owing_since > patience
            if is_late and not self._catches_up(channel):
                continue
            return channel
        return None

    def _catches_up(self, channel: Channel) -> bool:
        try:
            while channel.owed and _readable([channel], 0.0):
                channel.receive()
        except (OSError, RedisError):
            channel.owed = MOST_OWED
        if channel.owed:
            channel.close()
            self.failed("it does not answer")
        return not channel.owed

    def failed(self, reason: str) -> None:
        if not self.failures:
            logger.warning("quorum_node_away node=%s reason=%s", self.name, reason)
        self.failures += 1
        self.trouble = reason
        rest = min(LONGEST_REST, 0.05 * 2 ** min(self.failures, 10))
        self.next_try = time.monotonic() + rest * random.uniform(0.5, 1.0)  # noqa: S311 - jitter

    def answered(self) -> None:
        if self.failures:
            logger.info("quorum_node_back node=%s", self.name)
            self.failures = 0
            self.trouble = ""

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


class Nodes:
    """`timeout`: seconds that a node has to answer."""

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.all = nodes
        self.size = Size(len(nodes))
        self.timeout = timeout

    def exchange(
        self,
        parcels: Mapping[int, Parcel],
        under: Mapping[int, str] | None = None,
        *,
        waits: bool = True,
    ) -> dict[int, Heard]:
        """What each node answered; those that did not answer in time are missing."""
        channels = self.channels([number for number in parcels if not self.all[number].is_out])
        exchange = _Exchange(self, parcels, under)
        if not waits:
            exchange.post(channels)
            return {}
        cut = exchange.run(channels)
        if cut:
            # Most often kept connections to a server that was restarted, or reached by a network that
            # was. Every script may be run twice, so a lost reply does no harm.
            for number in cut:
                self.all[number].close()
            again = [number for number in cut if not self.all[number].is_out]
            exchange.run(self.channels(again, are_all_due=True), is_last=True)
        return exchange.heard

    def channels(self, numbers: Collection[int], *, are_all_due: bool = False) -> dict[int, Channel]:
        """A connection to each node that can be had soon enough."""
        found: dict[int, Channel] = {}
        missing = []
        for number in numbers:
            channel = self.all[number].take_idle(self.timeout)
            if channel is not None:
                found[number] = channel
            else:
                missing.append(self.all[number])
        if missing:
            now = time.monotonic()
            due = [node for node in missing if node.next_try <= now]
            if are_all_due or len(found) + len(due) < self.size.majority:
                due = missing
            self._connect(due, found)
            self.expel_older()
        return found

    def expel_older(self) -> None:
        """Keep to the newest generation: a node of an older one was away when it began."""
        newest = self.newest_generation
        for node in self.all:
            if node.token is not None and node.token.generation < newest:
                node.token, node.is_out = None, True
                node.trouble = "it was away when the others began anew, and is not repaired yet"

    def _connect(self, nodes: Sequence[Node], found: dict[int, Channel]) -> None:
        arrivals: queue.SimpleQueue[tuple[Node, Channel | None]] = queue.SimpleQueue()
        given_up = threading.Event()

        def connect(node: Node) -> None:
            try:
                channel = node.open()
            except (OSError, RedisError) as error:
                node.failed(f"{type(error).__name__}: {error}")
                arrivals.put((node, None))
                return
            if given_up.is_set():
                node.idle.append(channel)
            else:
                arrivals.put((node, channel))

        for node in nodes:
            threading.Thread(target=connect, args=(node,), name="quorum-connect", daemon=True).start()
        left = len(nodes)
        began = time.monotonic()
        end = began + 2 * self.timeout
        while left:
            try:
                node, channel = arrivals.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            left -= 1
            if channel is not None:
                found[node.number] = channel
            if len(found) >= self.size.majority:
                now = time.monotonic()
                end = min(end, now + max(GRACE, now - began))
        given_up.set()
        while not arrivals.empty():
            node, channel = arrivals.get()
            if channel is not None:
                node.idle.append(channel)

    @property
    def taking_part(self) -> int:
        return sum([node.token is not None for node in self.all])

    @property
    def has_some_out(self) -> bool:
        return True in [node.is_out for node in self.all]

    @property
    def newest_generation(self) -> str:
        """Empty if no node is known to take part."""
        return max([node.token.generation if node.token else "" for node in self.all])

    @property
    def troubles(self) -> str:
        return "; ".join(f"{node.name}: {node.trouble}" for node in self.all if node.trouble)

    def close(self) -> None:
        for node in self.all:
            node.close()


class _Exchange:
    """One round over the network."""

    def __init__(
        self, nodes: Nodes, parcels: Mapping[int, Parcel], under: Mapping[int, str] | None
    ) -> None:
        self._nodes = nodes
        self._parcels = parcels
        # Known before the round began, or nothing: see quorum.py.
        self._under = under or {node.number: " ".join(node.token) for node in nodes.all if node.token}
        self._got: dict[int, list[Reply]] = {}
        self.heard: dict[int, Heard] = {}

    def post(self, channels: Mapping[int, Channel]) -> None:
        """Send, and let the answers be read later."""
        now = time.monotonic()
        for number, channel in channels.items():
            node = self._nodes.all[number]
            if self._send(node, channel):
                if not channel.owed:
                    channel.owing_since = now
                channel.owed += len(self._parcels[number].commands)
                self._keep(node, channel)

    def run(self, channels: Mapping[int, Channel], *, is_last: bool = False) -> list[int]:
        """Send, and wait. Returns the nodes whose connection turned out to be cut."""
        began = time.monotonic()
        waiting: dict[int, Node] = {}
        by_fd: dict[int, Channel] = {}
        cut: list[int] = []
        for number, channel in channels.items():
            node = self._nodes.all[number]
            if self._send(node, channel):
                fd = channel.fd
                waiting[fd], by_fd[fd] = node, channel
                self._got[number] = []
            elif number not in self.heard:
                cut.append(number)
        end = began + self._nodes.timeout
        majority = self._nodes.size.majority
        poller = select.poll()
        for fd in by_fd:
            poller.register(fd, select.POLLIN)
        while waiting:
            ready = poller.poll(max(0.0, end - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                node, channel = waiting[fd], by_fd[fd]
                try:
                    is_done = self._listen(node, channel)
                except (OSError, RedisError) as error:
                    channel.close()
                    if is_last:
                        node.failed(f"{type(error).__name__}: {error}")
                    cut.append(node.number)
                    is_done = True
                if is_done:
                    poller.unregister(fd)
                    del waiting[fd]
            if len(self.heard) >= majority and waiting:
                now = time.monotonic()
                end = min(end, now + max(GRACE, now - began))
        self._leave(waiting, by_fd, began)
        return cut

    def _send(self, node: Node, channel: Channel) -> bool:
        token = self._under.get(node.number)
        if token is None or not token.startswith(channel.run_id):
            # Another life of the server than the round was begun in. On a new connection that is known
            # already; the next round is begun in it.
            if node.token is None or node.token.run_id != channel.run_id:
                channel.close()
            else:
                self.heard[node.number] = Heard(str(node.token), None)
                self._keep(node, channel)
            return False
        try:
            channel.send(self._parcels[node.number].packed.replace(TOKEN, token.encode()))
        except OSError:
            channel.close()
            return False
        return True

    def _listen(self, node: Node, channel: Channel) -> bool:
        """Whether all has been said."""
        commands = self._parcels[node.number].commands
        got = self._got[node.number]
        got += channel.receive()
        if len(got) < len(commands):
            return False
        refusal = first_refusal(got)
        if refusal is None:
            node.answered()
            self.heard[node.number] = Heard(self._under[node.number], got)
        elif refusal.startswith("NOSCRIPT"):
            self._teach(node, channel, commands)
            return False
        elif refusal.startswith("STALE"):
            node.survey(channel)
            self._nodes.expel_older()
            self.heard[node.number] = Heard(str(node.token), None)
        else:
            # OOM, READONLY, LOADING, NOPERM...: the node cannot serve us now.
            node.failed(refusal)
        self._keep(node, channel)
        return True

    def _teach(self, node: Node, channel: Channel, commands: Sequence[Command]) -> None:
        """All of them again, as every script may be run twice, and this happens once a script."""
        self._got[node.number] = []
        packed = b"".join([command.by_source() for command in commands])
        channel.send(packed.replace(TOKEN, self._under[node.number].encode()))

    def _leave(
        self, waiting: Mapping[int, Node], channels: Mapping[int, Channel], began: float
    ) -> None:
        """Whoever is only slow answers later, and others need not wait for it."""
        now = time.monotonic()
        for fd, node in waiting.items():
            channel = channels[fd]
            if now - began >= self._nodes.timeout:
                channel.close()
                node.failed("it does not answer")
                continue
            if not channel.owed:
                channel.owing_since = now
            channel.owed += len(self._parcels[node.number].commands) - len(self._got[node.number])
            self._keep(node, channel)

    def _keep(self, node: Node, channel: Channel) -> None:
        if channel.owed > MOST_OWED:
            channel.close()
            node.failed("it does not answer")
        else:
            node.idle.append(channel)


def _readable(channels: Iterable[Channel], timeout: float) -> bool:
    poller = select.poll()
    for channel in channels:
        poller.register(channel.fd, select.POLLIN)
    return bool(poller.poll(timeout * 1000))
