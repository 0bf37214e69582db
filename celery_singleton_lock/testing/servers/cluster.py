"""A Redis Cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .certificates import CertificateFiles
from .group import ServerGroup
from .ports import free_port
from .redis import Flavour, RedisServer, answers, is_replica_in_sync

_SLOTS = 16_384


class RedisCluster(ServerGroup):
    """Masters that share the slots, each with its replicas; formed without the CLI.

    ``node_timeout_ms``: how long a master must be silent before its replica takes over.
    ``persistent``: as for `RedisServer`; without it a restart of the whole cluster forgets the
    data. Which node is whose replica survives a restart that keeps the data either way.
    ``tls``: clients and nodes speak nothing else, with one certificate for all.
    """

    kind = "redis cluster"

    def __init__(
        self,
        masters: int = 3,
        replicas_per_master: int = 1,
        flavour: Flavour = "valkey",
        *,
        node_timeout_ms: int = 2_000,
        persistent: bool = False,
        tls: bool = False,
    ) -> None:
        self._masters = masters
        self.nodes: list[_ClusterNode] = []
        for _ in range(masters * (1 + replicas_per_master)):
            node = _ClusterNode(
                flavour, node_timeout_ms=node_timeout_ms, persistent=persistent, tls=tls
            )
            self.nodes.append(node)
            node.certified_by = self.nodes[0]

    @property
    def members(self) -> list[_ClusterNode]:
        return self.nodes

    @property
    def url(self) -> str:
        """Names the first node, also while that one is down; see ``nodes`` for the others."""
        first = self.nodes[0]
        place = f"127.0.0.1:{first.port}"
        return f"rediss+cluster://{place}?{first.trust}" if first.tls else f"redis+cluster://{place}"

    def master_of(self, key: str | bytes) -> RedisServer:
        """The node that serves ``key``, as seen by the first node that answers."""
        for view in self._views_of(key):
            return next(node for node in self.nodes if node.port == view.master_port)
        raise RuntimeError("no node of the cluster answers")

    def kill_master_of(self, key: str | bytes) -> RedisServer:
        """End the node that serves ``key`` by SIGKILL; return the one that serves it next."""
        lost = self.master_of(key)
        lost.kill()
        self._await(f"a new master of {key!r}", lambda: self._agree_on_master(key, lost))
        return self.master_of(key)

    def _agree_on_master(self, key: str | bytes, other_than: RedisServer) -> bool:
        views = list(self._views_of(key))
        ports = {view.master_port for view in views}
        return all(view.is_ok for view in views) and len(ports) == 1 and other_than.port not in ports

    def _views_of(self, key: str | bytes) -> Iterator[_View]:
        """What each node says that answers; one that a test has paused does not."""
        from redis import ConnectionError, TimeoutError

        for node in self.nodes:
            if node.running:
                with suppress(ConnectionError, TimeoutError):
                    yield node.view_of(key)

    def _await_ready(self) -> None:
        if self._all_answer(_knows_no_slots):
            self._form()
        self._await("the state ok on all nodes", self._is_complete)

    def _form(self) -> None:
        for epoch, node in enumerate(self.nodes, start=1):
            # Distinct from the start: nodes settle a conflict of epochs one by one.
            node.ask("CLUSTER SET-CONFIG-EPOCH", epoch)
        masters, replicas = self.nodes[: self._masters], self.nodes[self._masters :]
        for i, master in enumerate(masters):
            first, after_last = (n * _SLOTS // len(masters) for n in (i, i + 1))
            master.ask("CLUSTER ADDSLOTSRANGE", first, after_last - 1)
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER MEET", "127.0.0.1", node.port, node.bus_port)
        self._await("all nodes to meet", lambda: self._all_answer(self._has_met_all))
        for i, replica in enumerate(replicas):
            replica.ask("CLUSTER REPLICATE", masters[i % len(masters)].ask("CLUSTER MYID"))

    def _is_complete(self) -> bool:
        return self._all_answer(
            lambda node: (
                _cluster_is_ok(node)
                and self._sees_all_serving(node)
                and (_is_master(node) or is_replica_in_sync(node))
            )
        )

    def _all_answer(self, question: Callable[[Any], bool]) -> bool:
        return all(answers(node, question) for node in self.nodes)

    def _has_met_all(self, node: Any) -> bool:
        known = node.cluster("NODES").values()
        return len(known) == len(self.nodes) and not any("handshake" in k["flags"] for k in known)

    def _sees_all_serving(self, node: Any) -> bool:
        # Each entry: first slot, last slot, the master, its healthy replicas.
        seen = {server[1] for _, _, *servers in _slot_ranges(node) for server in servers}
        return seen == {node.port for node in self.nodes}


@dataclass(frozen=True)
class _View:
    """What one node believes about one key; a port of None means that nobody serves it."""

    is_ok: bool
    master_port: int | None


class _ClusterNode(RedisServer):
    def __init__(self, flavour: Flavour, *, node_timeout_ms: int, persistent: bool, tls: bool) -> None:
        super().__init__(flavour, persistent=persistent, tls=tls)
        self.certified_by: RedisServer = self
        self.bus_port = 0
        self._node_timeout_ms = node_timeout_ms

    @property
    def _tls_files(self) -> CertificateFiles:
        if self.certified_by is self:
            return super()._tls_files
        return self.certified_by._tls_files

    def ask(self, *command: str | int) -> Any:
        with self.connect() as client:
            return client.execute_command(*command)

    def view_of(self, key: str | bytes) -> _View:
        with self.connect() as client:
            slot = client.execute_command("CLUSTER KEYSLOT", key)
            masters = [
                int(master[1])
                for first, last, master, *_ in _slot_ranges(client)
                if first <= slot <= last
            ]
            return _View(_cluster_is_ok(client), masters[0] if masters else None)

    def _create_data(self) -> None:
        # Chosen here, so that a start that is tried again has new ports for both.
        self.bus_port = free_port()
        super()._create_data()

    def _settings(self) -> dict[str, str]:
        return super()._settings() | {
            "cluster-enabled": "yes",
            "cluster-port": str(self.bus_port),
            "cluster-announce-ip": "127.0.0.1",
            "cluster-node-timeout": str(self._node_timeout_ms),
            # A replica is listed for clients only after its master's first ping (10 s by default).
            "repl-ping-replica-period": "1",
            # Replicas stay with their master, so a test knows whom it has killed.
            "cluster-allow-replica-migration": "no",
            **({"tls-cluster": "yes"} if self.tls else {}),
        }


def _cluster_is_ok(client: Any) -> bool:
    return bool(client.cluster("INFO")["cluster_state"] == "ok")


def _knows_no_slots(client: Any) -> bool:
    return bool(client.cluster("INFO")["cluster_slots_assigned"] == "0")


def _is_master(client: Any) -> bool:
    return bool(client.info("replication")["role"] == "master")


def _slot_ranges(client: Any) -> list[Any]:
    return list(client.execute_command("CLUSTER SLOTS"))
