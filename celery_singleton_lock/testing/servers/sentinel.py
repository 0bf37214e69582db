"""A Redis master with replicas, watched by sentinels."""

from __future__ import annotations

from collections import Counter
from typing import Any

from .certificates import CertificateFiles
from .group import ServerGroup
from .launch import Command
from .redis import Flavour, RedisServer, answers, find_binary, is_replica_in_sync, quoted

SERVICE = "mymaster"

# In production sentinels take seconds to find each other, and after any pause of theirs they sit
# still for half a minute. How they decide is not touched.
_HASTE = ("INFO-PERIOD", 1_000, "PUBLISH-PERIOD", 500, "TILT-PERIOD", 2_000)


class SentinelSet(ServerGroup):
    """One master, its replicas, and sentinels that promote a replica when the master is lost.

    ``down_after_ms``: how long the master must be silent before the sentinels act.
    ``persistent``: as for `RedisServer`; without it a restart of the whole set forgets the data.
    ``tls``: nodes and sentinels speak nothing else, with one certificate for all.
    """

    kind = "sentinel set"

    def __init__(
        self,
        replicas: int = 2,
        sentinels: int = 3,
        flavour: Flavour = "valkey",
        *,
        down_after_ms: int = 1_000,
        persistent: bool = False,
        tls: bool = False,
    ) -> None:
        first = RedisServer(flavour, persistent=persistent, tls=tls)
        self.nodes: list[RedisServer] = [
            first,
            *(_Replica(first, persistent=persistent) for _ in range(replicas)),
        ]
        self.sentinels = [
            _Sentinel(first, quorum=sentinels // 2 + 1, down_after_ms=down_after_ms)
            for _ in range(sentinels)
        ]

    @property
    def members(self) -> list[RedisServer]:
        return [*self.nodes, *self.sentinels]

    @property
    def url(self) -> str:
        hosts = ";".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        first = self.nodes[0]
        return (
            f"sentinels://{hosts}/{SERVICE}?{first.trust}"
            if first.tls
            else f"sentinel://{hosts}/{SERVICE}"
        )

    @property
    def master(self) -> RedisServer:
        """The node that most sentinels name; it may be down if they have not yet noticed."""
        named = Counter(filter(None, map(_master_port, self._watching())))
        if not named:
            raise RuntimeError("no sentinel names a master")
        port, _ = named.most_common(1)[0]
        return next(node for node in self.nodes if node.port == port)

    def kill_master(self) -> RedisServer:
        """End the master by SIGKILL; return its successor as soon as that one accepts writes."""
        lost = self.master
        lost.kill()
        self._await("a new master", lambda: self._agree_on_writable_master(other_than=lost))
        return self.master

    def _watching(self) -> list[_Sentinel]:
        return [sentinel for sentinel in self.sentinels if sentinel.running]

    def _agree_on_writable_master(self, other_than: RedisServer) -> bool:
        # None comes from a sentinel that does not answer, for example because a test paused it.
        ports = {_master_port(sentinel) for sentinel in self._watching()} - {None}
        if len(ports) != 1 or other_than.port in ports:
            return False
        return answers(self.master, _takes_a_write)

    def _await_ready(self) -> None:
        self._await("all nodes and sentinels to know each other", self._is_complete)

    def _is_complete(self) -> bool:
        replicas = [node for node in self.nodes if node is not self.master]
        return all(answers(sentinel, self._knows_all) for sentinel in self.sentinels) and all(
            answers(replica, is_replica_in_sync) for replica in replicas
        )

    def _knows_all(self, sentinel: Any) -> bool:
        master = sentinel.sentinel_master(SERVICE)
        replicas = sentinel.sentinel_slaves(SERVICE)
        return (
            master["flags"] == "master"
            and master["num-other-sentinels"] == len(self.sentinels) - 1
            and [replica["flags"] for replica in replicas] == ["slave"] * (len(self.nodes) - 1)
        )


class _Replica(RedisServer):
    def __init__(self, master: RedisServer, *, persistent: bool) -> None:
        super().__init__(master.flavour, persistent=persistent, tls=master.tls)
        self._first_master = master

    @property
    def _tls_files(self) -> CertificateFiles:
        return self._first_master._tls_files

    def _settings(self) -> dict[str, str]:
        return super()._settings() | {"replicaof": f"127.0.0.1 {self._first_master.port}"}


class _Sentinel(RedisServer):
    def __init__(self, master: RedisServer, *, quorum: int, down_after_ms: int) -> None:
        super().__init__(master.flavour, tls=master.tls)
        self.kind = "sentinel"
        self._first_master = master
        self._quorum = quorum
        self._down_after_ms = down_after_ms

    @property
    def _tls_files(self) -> CertificateFiles:
        return self._first_master._tls_files

    def _launch(self) -> None:
        super()._launch()
        with self.connect() as client:
            client.execute_command("SENTINEL", "DEBUG", *_HASTE)  # not kept in its file

    def _settings(self) -> dict[str, str]:
        monitored = f"127.0.0.1 {self._first_master.port} {self._quorum}"
        return {
            "bind": "127.0.0.1",
            "port": str(self.port),
            "dir": quoted(self.data),
            **self._tls_settings(),
            f"sentinel monitor {SERVICE}": monitored,
            f"sentinel down-after-milliseconds {SERVICE}": str(self._down_after_ms),
            # Two sentinels that stood for election at once try again after twice this time.
            f"sentinel failover-timeout {SERVICE}": str(3 * self._down_after_ms),
        }

    def _command(self) -> Command:
        return Command([str(find_binary(self.flavour)), str(self._config_path), "--sentinel"])


def _master_port(sentinel: _Sentinel) -> int | None:
    """The port of the master that ``sentinel`` names; None if it does not answer."""
    from redis import RedisError

    try:
        with sentinel.connect() as client:
            address = client.execute_command("SENTINEL GET-MASTER-ADDR-BY-NAME", SERVICE)
    except RedisError:
        return None
    return int(address[1]) if address else None


def _takes_a_write(node: Any) -> bool:
    # Counts as a write, so a replica refuses it, and changes nothing.
    return bool(node.delete("celery_singleton_lock:no-such-key") == 0)
