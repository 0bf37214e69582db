"""All nodes: which of them take part, and a connection to each that can be had soon enough."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Collection, Sequence
from typing import Final

from redis.exceptions import RedisError

from .channel import Channel
from .incarnation import Token
from .node import Node
from .rounds import Size

GRACE: Final = 0.01
"""Seconds that the others have once a majority has answered; longer if the majority took longer."""


class Nodes:
    """`timeout`: seconds that a node has to answer."""

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.all = nodes
        self.size = Size(len(nodes))
        self.timeout = timeout

    def channels(
        self, numbers: Collection[int], *, are_all_due: bool = False, waits_for_all: bool = False
    ) -> dict[int, Channel]:
        """A connection to each node that can be had soon enough.

        `are_all_due`: also to those that failed lately. `waits_for_all`: soon enough is before the
        timeout, and not as soon as a majority.
        """
        found: dict[int, Channel] = {}
        missing = []
        pid = os.getpid()
        for number in numbers:
            channel = self.all[number].take_idle(pid, self.timeout)
            if channel is not None:
                found[number] = channel
            else:
                missing.append(self.all[number])
        if missing:
            now = time.monotonic()
            due = [node for node in missing if node.next_try <= now]
            if are_all_due or len(found) + len(due) < self.size.majority:
                due = missing
            self._connect(due, found, waits_for_all)
            self.expel_older()
        return found

    def expel_older(self) -> None:
        """Keep to the newest generation: a node of an older one was away when it began."""
        newest = self.newest_generation
        for node in self.all:
            if node.token is not None and node.token.generation < newest:
                node.token, node.is_out = None, True
                node.trouble = "it was away when the others began anew, and is not repaired yet"

    def _connect(self, nodes: Sequence[Node], found: dict[int, Channel], waits_for_all: bool) -> None:
        """In threads: a node that is cut off takes a whole timeout to be found out."""
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
        slow = {node.number: node for node in nodes}
        began = time.monotonic()
        end = began + 2 * self.timeout
        while slow:
            try:
                node, channel = arrivals.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                break
            del slow[node.number]
            if channel is not None:
                found[node.number] = channel
            if len(found) >= self.size.majority and not waits_for_all:
                now = time.monotonic()
                end = min(end, now + max(GRACE, now - began))
        for node in slow.values():
            if node.token is None and not node.is_out:
                node.trouble = "it is slow to connect"
        given_up.set()
        while not arrivals.empty():
            node, channel = arrivals.get()
            if channel is not None:
                node.idle.append(channel)

    @property
    def tokens(self) -> list[Token | None]:
        return [node.token for node in self.all]

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
