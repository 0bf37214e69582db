"""Changes in Redis streams, one for each shard: what is in there is pending, the rest is deleted.

To have another number of shards, changes that come are put into streams of the next generation, and
those of the one before are drained first: so changes of one key keep their order, and none is left out.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

from celery_singleton_lock.core.errors import ConfigurationError, LeaseLost
from celery_singleton_lock.core.models import Lease

from .stream import Batch, Changes, Handler


class Change(NamedTuple):
    """An entry of a Redis stream."""

    id: str
    fields: Mapping[str, str]


class RedisChanges(Changes):
    """`client` is a redis-py client. Put changes in with `add`, and in no other way."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._add = _script(client, "add")
        self._take = _script(client, "take")
        self._settle = _script(client, "settle")
        self._change = _script(client, "change")

    def open(self, name: str, prefix: str, shards: int) -> None:
        if "{" in name or "}" in name:
            raise ConfigurationError(f"name={name!r}: a stream in Redis has no braces in its name")
        super().open(name, prefix, shards)
        # In braces, so that all keys of a stream are in one slot of a Cluster.
        self._base = f"{prefix}:stream:{{{name}}}"

    def add(self, key: str, fields: Mapping[str, Any]) -> str:
        """A change of `key`; those of one key are processed in the order in which they were added.
        Returns its id."""
        if not fields:
            raise ConfigurationError("a change needs at least one field")
        pairs = [part for pair in fields.items() for part in pair]
        added = self._add(keys=[self._base], args=[self.first_shards, zlib.crc32(key.encode()), *pairs])
        return _text(added)

    def shards(self) -> int:
        draining, shards = self._client.hmget(self._base, "old_shards", "shards")
        return int(draining or shards or self.first_shards)

    def process(self, shard: int, lease: Lease, handle: Handler, most: int) -> int:
        found = self._take(keys=[self._base], args=[shard, _fence(lease), most, self.first_shards])
        if found == -1:
            raise LeaseLost(lease.key, lease.fence)
        generation, entries = found
        if not entries:
            return 0
        changes = [_change(entry) for entry in entries]
        handle(Batch(changes, None, lease))
        ids = [each.id for each in changes]
        args = [shard, _fence(lease), _text(generation), *ids]
        if self._settle(keys=[self._base], args=args) == -1:
            raise LeaseLost(lease.key, lease.fence)
        return len(changes)

    def change_shards(self, shards: int, leases: Sequence[Lease]) -> None:
        if self._change(keys=[self._base], args=[shards, self.first_shards]) == -1:
            raise ConfigurationError(
                f"stream {self.name!r} is being changed: its old shards have to be drained first"
            )

    def pending(self) -> int:
        state = {_text(name): int(value) for name, value in self._client.hgetall(self._base).items()}
        streams = [
            f"{self._base}:{state[generation]}:{shard}"
            for generation, shards in (("old_generation", "old_shards"), ("generation", "shards"))
            for shard in range(state.get(shards, 0))
        ]
        pipeline = self._client.pipeline(transaction=False)
        for stream in streams:
            pipeline.xlen(stream)
        return sum(pipeline.execute())

    @property
    def is_changing(self) -> bool:
        return bool(self._client.hexists(self._base, "old_generation"))


def _script(client: Any, name: str) -> Any:
    return client.register_script((resources.files(__package__) / f"{name}.lua").read_text())


def _fence(lease: Lease) -> str:
    # Of one width, so that texts compare as the numbers do.
    return f"{lease.fence:020d}"


def _change(entry: Any) -> Change:
    change_id, flat = entry
    texts = [_text(each) for each in flat]
    return Change(_text(change_id), dict(zip(texts[::2], texts[1::2], strict=True)))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
