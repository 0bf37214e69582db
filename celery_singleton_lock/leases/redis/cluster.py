"""A batch over Redis Cluster: every command to the master of its key's slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.exceptions import (
    AskError,
    ConnectionError,
    MovedError,
    RedisClusterException,
    SlotNotCoveredError,
    TimeoutError,
)

from .links import OnServer, PubSub, Reply, borrowed, receive, scan_server, send, send_asking
from .scripts import Command


class ClusterLink:
    """Routes with redis-py's map of the slots; all masters work on a batch at the same time."""

    MOVES = 5

    def __init__(self, connect: Callable[[], RedisCluster], on_server: OnServer) -> None:
        self._connect = connect
        self._on_server = on_server
        self._connected: RedisCluster | None = None

    @property
    def _cluster(self) -> RedisCluster:
        # Connecting is I/O, which opening a store must not do.
        if self._connected is None:
            self._connected = self._connect()
        return self._connected

    def exchange(self, commands: Sequence[Command]) -> list[Reply]:
        replies: list[Reply] = [None] * len(commands)
        left = list(range(len(commands)))
        for _ in range(self.MOVES):
            left = self._exchange_some(commands, left, replies)
            if not left:
                return replies
        raise ConnectionError(f"the cluster's slots keep moving: {replies[left[0]]}")

    def _exchange_some(
        self, commands: Sequence[Command], wanted: list[int], replies: list[Reply]
    ) -> list[int]:
        """Fill in `replies`; return the indexes of those that have moved."""
        try:
            self._ask_masters(commands, wanted, replies)
        except TimeoutError:
            self._learn_slots()
            raise
        except ConnectionError:
            # A stale connection, or a dead master: look again who serves, and try once more.
            self._learn_slots()
            self._ask_masters(commands, wanted, replies)
        for at in wanted:
            reply = replies[at]
            if isinstance(reply, MovedError):
                self._cluster.nodes_manager.move_slot(reply)
            elif isinstance(reply, AskError):
                with borrowed(self._pool(ClusterNode(reply.host, reply.port))) as connection:
                    replies[at] = send_asking(connection, commands[at])
        return [at for at in wanted if isinstance(replies[at], MovedError)]

    def _ask_masters(
        self, commands: Sequence[Command], wanted: list[int], replies: list[Reply]
    ) -> None:
        shares: dict[ClusterNode, list[int]] = defaultdict(list)
        for at in wanted:
            shares[self._master_of(commands[at].key)].append(at)
        with ExitStack() as stack:
            asked = []
            for node, share in shares.items():
                connection = stack.enter_context(borrowed(self._pool(node)))
                part = [commands[at] for at in share]
                send(connection, part)
                asked.append((connection, share, part))
            for connection, share, part in asked:
                for at, reply in zip(share, receive(connection, part), strict=True):
                    replies[at] = reply
                    if not isinstance(reply, AskError):
                        self._on_server(self._cluster.keyslot(commands[at].key), connection.server)

    def _master_of(self, key: bytes) -> ClusterNode:
        cluster = self._cluster
        slot = cluster.keyslot(key)
        try:
            return cluster.nodes_manager.get_node_from_slot(slot)
        except SlotNotCoveredError:
            self._learn_slots()
            return self._cluster.nodes_manager.get_node_from_slot(slot)

    def _pool(self, node: ClusterNode) -> ConnectionPool:
        return self._cluster.get_redis_connection(node).connection_pool

    def _learn_slots(self) -> None:
        if self._connected is None:
            return
        try:
            self._connected.nodes_manager.initialize()
        except (RedisClusterException, ConnectionError):
            # No known node answers: begin again from the configured addresses.
            self.close()

    def scan(self, pattern: bytes) -> Iterator[list[bytes]]:
        for node in self._cluster.get_primaries():
            yield from scan_server(self._cluster.get_redis_connection(node), pattern)

    def pubsub(self) -> PubSub:
        return self._cluster.pubsub(ignore_subscribe_messages=True)

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()
