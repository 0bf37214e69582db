"""What things are called in Redis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final
from urllib.parse import quote
from zlib import crc32

from celery_singleton_lock.leases.base import LISTED

_GLOB: Final = str.maketrans({char: f"\\{char}" for char in "*?[\\"})


class Names:
    """A record is named ``<prefix>:<key>``.

    One that is listed is named ``<prefix>.list.{n}:<key>``, and its index ``<prefix>.list.{n}``: a
    script changes both, and Cluster keeps what has one tag in one place. `lists` is how many indexes
    there are; more than one spread the records over a cluster.
    """

    def __init__(self, prefix: str, lists: int) -> None:
        self._prefix = prefix
        self._lists = lists
        self.plain = f"{prefix}:"
        self.indexes = [f"{prefix}.list.{{{number}}}".encode() for number in range(lists)]

    def of(self, keys: Sequence[str]) -> list[bytes]:
        return [self._of(key) for key in keys]

    def _of(self, key: str) -> bytes:
        if key.startswith(LISTED):
            return self.index_of(key) + b":" + key.encode()
        return (self.plain + key).encode()

    def index_of(self, key: str) -> bytes:
        """The index that lists `key`; empty if none does."""
        if not key.startswith(LISTED):
            return b""
        return self.indexes[crc32(key.encode()) % self._lists if self._lists > 1 else 0]

    def key_of(self, name: str) -> str:
        """The key of a record that is named so."""
        if name.startswith(self.plain):
            return name[len(self.plain) :]
        return name[len(self._prefix) :].partition(":")[2]

    def patterns(self, prefix: str) -> list[bytes]:
        """What the names of keys that begin with `prefix` look like."""
        patterns = [f"{(self.plain + prefix).translate(_GLOB)}*"]
        if prefix.startswith(LISTED) or LISTED.startswith(prefix):
            patterns.append(f"{self._prefix.translate(_GLOB)}.list.{{*}}:{prefix.translate(_GLOB)}*")
        return [pattern.encode() for pattern in patterns]

    def channel(self, key: str) -> bytes:
        """Where it is told that a lease was let go. The scripts compute the same."""
        before = self.plain.encode()
        return before + b"released:" + self._of(key)[len(before) :]

    def channels(self) -> bytes:
        """The pattern of all channels. It is that of the ACL rule in docs/stores.md: a user may listen
        to no other."""
        return f"{self.plain.translate(_GLOB)}released:*".encode()

    def key_of_channel(self, channel: bytes) -> str:
        told = channel.decode(errors="replace")[len(self.plain) + len("released:") :]
        return told.partition(":")[2] if told.startswith("list.{") else told

    def group(self, group: str) -> bytes:
        """Where a group meets. Its book is named after it, in the same place of a cluster."""
        return f"{self._prefix}.{{group.{quote(group, safe='')}}}".encode()
