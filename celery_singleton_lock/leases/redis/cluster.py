"""A batch over Redis Cluster: every command to the master of its keys' slot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from redis.cluster import ClusterNode, RedisCluster
from redis.connection import ConnectionPool
from redis.exceptions import (
    AskError,
    ConnectionError,
    MovedError,
    RedisClusterException,
    SlotNotCoveredError,
    TimeoutError,
    TryAgainError,
)

from .links import (
    Client,
    OnServer,
    Part,
    PubSub,
    Reply,
    borrowed,
    receive,
    scan_server,
    send,
    send_asking,
)
from .scripts import Command, chunks


class Share(NamedTuple):
    """The places of keys that one script may have: all of one slot."""

    slot: int
    places: Sequence[int]


@contextmanager
def _as_connection_errors() -> Iterator[None]:
    """redis-py's own for a cluster that cannot be reached, or has no master for a slot, is none of its
    other errors."""
    try:
        yield
    except RedisClusterException as error:
        raise ConnectionError(str(error)) from error


class ClusterLink:
    """Routes with redis-py's map of the slots; all masters work on a batch at the same time."""

    MOVES = 5
    lists = 16

    def __init__(self, connect: Callable[[], RedisCluster], on_server: OnServer) -> None:
        self._connect = connect
        self._on_server = on_server
        self._connected: RedisCluster | None = None

    @property
    def _cluster(self) -> RedisCluster:
        # Connecting is I/O, which opening a store must not do.
        if self._connected is None:
            with _as_connection_errors():
                self._connected = self._connect()
        return self._connected

    def exchange(self, command: Command) -> list[Part]:
        done: list[Part] = []
        left = self._shares(command)
        for _ in range(self.MOVES):
            parts = zip(left, self._exchange_shares(command, left), strict=True)
            left = []
            for share, reply in parts:
                if isinstance(reply, MovedError):
                    left.append(share)
                elif isinstance(reply, TryAgainError) and len(share.places) > 1:
                    # The slot is moving, and its keys are at both ends: ask for each where it is.
                    left += [Share(share.slot, [at]) for at in share.places]
                else:
                    done.append((share.places, reply))
            if not left:
                return done
        raise ConnectionError(f"the cluster's slots keep moving, slot {left[0].slot} last")

    def start(self, command: Command) -> Callable[[], list[Part]]:
        # What is sent later may go to another master: there is no order to keep.
        parts = self.exchange(command)
        return lambda: parts

    def _shares(self, command: Command) -> list[Share]:
        by_slot: dict[int, list[int]] = defaultdict(list)
        for at, key in enumerate(command.keys):
            by_slot[self._cluster.keyslot(key)].append(at)
        return [Share(slot, some) for slot, places in by_slot.items() for some in chunks(places)]

    def _exchange_shares(self, command: Command, shares: Sequence[Share]) -> list[Reply]:
        commands = [command.only(share.places) for share in shares]
        try:
            replies = self._ask_masters(commands, shares)
        except TimeoutError:
            self._learn_slots()
            raise
        except ConnectionError:
            # A stale connection, or a dead master: look again who serves, and try once more.
            self._learn_slots()
            replies = self._ask_masters(commands, shares)
        for at, reply in enumerate(replies):
            if isinstance(reply, MovedError):
                self._cluster.nodes_manager.move_slot(reply)
            elif isinstance(reply, AskError):
                with borrowed(self._pool(ClusterNode(reply.host, reply.port))) as connection:
                    replies[at] = send_asking(connection, commands[at])
        return replies

    def _ask_masters(self, commands: Sequence[Command], shares: Sequence[Share]) -> list[Reply]:
        replies: list[Reply] = [None] * len(commands)
        by_node: dict[ClusterNode, list[int]] = defaultdict(list)
        for at, share in enumerate(shares):
            by_node[self._master_of(share.slot)].append(at)
        with ExitStack() as stack:
            asked = []
            for node, wanted in by_node.items():
                connection = stack.enter_context(borrowed(self._pool(node)))
                part = [commands[at] for at in wanted]
                send(connection, part)
                asked.append((connection, wanted, part))
            for connection, wanted, part in asked:
                for at, reply in zip(wanted, receive(connection, part), strict=True):
                    replies[at] = reply
                    if not isinstance(reply, AskError):
                        self._on_server(shares[at].slot, connection.server)
        return replies

    def _master_of(self, slot: int) -> ClusterNode:
        try:
            return self._cluster.nodes_manager.get_node_from_slot(slot)
        except SlotNotCoveredError:
            self._learn_slots()
            with _as_connection_errors():
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

    def clients(self) -> list[Client]:
        cluster = self._cluster
        return [cluster.get_redis_connection(node) for node in cluster.get_primaries()]

    def close(self) -> None:
        connected, self._connected = self._connected, None
        if connected is not None:
            connected.close()
