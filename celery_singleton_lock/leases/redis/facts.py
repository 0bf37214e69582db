"""What a Redis server says of itself, for people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.exceptions import ResponseError


@dataclass(frozen=True, slots=True)
class Replica:
    """`lag`: how long ago it last said how far it is."""

    name: str
    is_online: bool
    lag: timedelta


@dataclass(frozen=True, slots=True)
class ServerState:
    """One server. None: it does not tell, most often because an ACL forbids the question."""

    name: str
    version: str
    role: str
    policy: str
    max_memory: int
    """0: no limit."""
    used_memory: int
    evicted_keys: int
    has_append_only_file: bool
    has_snapshots: bool | None
    replicas: tuple[Replica, ...]
    is_link_up: bool
    """Whether a replica hears its master; True for a master."""

    @property
    def may_evict(self) -> bool:
        return self.max_memory > 0 and self.policy != "noeviction"


def state_of(client: Any, name: str) -> ServerState:
    """Raises redis-py's errors."""
    info = client.info("everything")
    return ServerState(
        name=name,
        version=str(info.get("valkey_version") or info.get("redis_version") or "?"),
        role=str(info.get("role", "master")),
        policy=str(info.get("maxmemory_policy", "noeviction")),
        max_memory=int(info.get("maxmemory", 0)),
        used_memory=int(info.get("used_memory", 0)),
        evicted_keys=int(info.get("evicted_keys", 0)),
        has_append_only_file=bool(info.get("aof_enabled")),
        has_snapshots=_has_snapshots(client),
        replicas=tuple(_replicas(info)),
        is_link_up=info.get("master_link_status", "up") == "up",
    )


def _has_snapshots(client: Any) -> bool | None:
    try:
        return bool(client.config_get("save").get("save"))
    except ResponseError:
        return None


def _replicas(info: dict[str, Any]) -> list[Replica]:
    told = [info.get(f"slave{number}") for number in range(int(info.get("connected_slaves", 0)))]
    return [
        Replica(
            f"{each.get('ip')}:{each.get('port')}",
            each.get("state") == "online",
            timedelta(seconds=int(each.get("lag", 0))),
        )
        for each in told
        if isinstance(each, dict)
    ]
