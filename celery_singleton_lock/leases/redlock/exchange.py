"""One round over the network: all nodes are asked at the same time, and none is waited for in vain.

The calling thread writes to all nodes and polls for their answers. Measured with five PINGs at once on
one host, that took 80 µs, with a thread a node 250 µs, with asyncio in a thread of its own 215 µs: each
wakes threads that have little to do.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from celery_singleton_lock.leases.redis.scripts import Command

from .channel import Channel, Reply, first_refusal
from .incarnation import LENGTH
from .node import Node
from .nodes import GRACE, Nodes
from .rounds import Heard

TOKEN: Final = b"\0" * LENGTH
"""Stands in a packed command for the incarnation of the node that it is sent to. A NUL is nowhere
else in it."""

Read = Callable[[Sequence[Reply]], Sequence[Any]]
"""What the replies of a node say."""


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


class Exchange:
    """`under`: the incarnations to act in; those that are known now, if it is None."""

    def __init__(
        self,
        nodes: Nodes,
        parcels: Mapping[int, Parcel],
        read: Read,
        under: Mapping[int, str] | None = None,
    ) -> None:
        self._nodes = nodes
        self._parcels = parcels
        self._read = read
        # Known before the round began, or nothing: see quorum.py.
        self._under = under or {node.number: " ".join(node.token) for node in nodes.all if node.token}
        self._got: dict[int, list[Reply]] = {}
        self._last_read: tuple[list[Reply] | None, Sequence[Any]] = (None, ())
        self.heard: dict[int, Heard] = {}

    def ask(self) -> dict[int, Heard]:
        """What each node answered; those that did not answer in time are missing."""
        nodes = self._nodes
        cut = self._run(self._channels())
        if cut:
            # Most often kept connections to a server that was restarted, or reached by a network that
            # was. Every script may be run twice, so a lost reply does no harm.
            for number in cut:
                nodes.all[number].close()
            self._got.clear()
            again = [number for number in cut if not nodes.all[number].is_out]
            self._run(nodes.channels(again, are_all_due=True), is_last=True)
        return self.heard

    def post(self) -> None:
        """Send, and let the answers be read later."""
        now = time.monotonic()
        for number, channel in self._channels().items():
            node = self._nodes.all[number]
            if self._send(node, channel):
                if not channel.owed:
                    channel.owing_since = now
                channel.owed += len(self._parcels[number].commands)
                node.keep(channel)

    def _channels(self) -> dict[int, Channel]:
        every = self._nodes.all
        return self._nodes.channels([number for number in self._parcels if not every[number].is_out])

    def _run(self, channels: Mapping[int, Channel], *, is_last: bool = False) -> list[int]:
        """Send, and wait. Returns the nodes whose connection turned out to be cut."""
        began = time.monotonic()
        waiting: dict[int, tuple[Node, Channel]] = {}
        cut: list[int] = []
        poller = select.poll()
        for number, channel in channels.items():
            node = self._nodes.all[number]
            if self._send(node, channel):
                waiting[channel.fd] = node, channel
                poller.register(channel.fd, select.POLLIN)
            elif number not in self.heard:
                cut.append(number)
        end = began + self._nodes.timeout
        majority = self._nodes.size.majority
        while waiting:
            ready = poller.poll(max(0.0, end - time.monotonic()) * 1000)
            if not ready:
                break
            for fd, _ in ready:
                node, channel = waiting[fd]
                try:
                    is_done = self._listen(node, channel)
                except (OSError, RedisError) as error:
                    channel.close()
                    if is_last:
                        node.failed(f"{type(error).__name__}: {error}")
                    cut.append(node.number)
                    is_done = True
                if is_done:
                    del waiting[fd]
            if waiting:
                for fd, _ in ready:
                    if fd not in waiting:
                        poller.unregister(fd)
                if len(self.heard) >= majority:
                    now = time.monotonic()
                    end = min(end, now + max(GRACE, now - began))
        if waiting:
            self._leave(waiting.values(), began)
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
                node.keep(channel)
            return False
        try:
            channel.send(self._parcels[node.number].packed.replace(TOKEN, token.encode()))
        except OSError:
            channel.close()
            return False
        return True

    def _listen(self, node: Node, channel: Channel) -> bool:
        """Whether all has been said."""
        number = node.number
        got = channel.receive()
        said, values = self._last_read
        if got == said and number not in self._got:
            # The same as another node, byte for byte: nearly always.
            self._accept(node, channel, values)
            return True
        got = self._got.get(number, []) + got
        commands = self._parcels[number].commands
        if len(got) < len(commands):
            self._got[number] = got
            return False
        refusal = first_refusal(got)
        if refusal is None:
            values = self._read(got)
            self._last_read = got, values
            self._accept(node, channel, values)
            return True
        if refusal.startswith("NOSCRIPT"):
            self._teach(node, channel, commands)
            return False
        if refusal.startswith("STALE"):
            node.survey(channel)
            self._nodes.expel_older()
            self.heard[number] = Heard(str(node.token), None)
        else:
            # OOM, READONLY, LOADING, NOPERM...: the node cannot serve us now.
            node.failed(refusal)
        node.keep(channel)
        return True

    def _accept(self, node: Node, channel: Channel, values: Sequence[Any]) -> None:
        if node.failures:
            node.answered()
        self.heard[node.number] = Heard(self._under[node.number], values)
        node.keep(channel)

    def _teach(self, node: Node, channel: Channel, commands: Sequence[Command]) -> None:
        """All of them again, as every script may be run twice, and this happens once a script."""
        self._got[node.number] = []
        packed = b"".join([command.by_source() for command in commands])
        channel.send(packed.replace(TOKEN, self._under[node.number].encode()))

    def _leave(self, waiting: Iterable[tuple[Node, Channel]], began: float) -> None:
        """Whoever is only slow answers later, and others need not wait for it."""
        now = time.monotonic()
        for node, channel in waiting:
            if now - began >= self._nodes.timeout:
                channel.close()
                node.failed("it does not answer")
                continue
            if not channel.owed:
                channel.owing_since = now
            got = self._got.get(node.number, [])
            channel.owed += len(self._parcels[node.number].commands) - len(got)
            node.keep(channel)
