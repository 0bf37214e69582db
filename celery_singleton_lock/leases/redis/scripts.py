"""The Lua scripts, and how to call them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True, slots=True)
class Script:
    source: bytes
    sha: bytes

    @classmethod
    def load(cls, name: str) -> Script:
        source = resources.files(__package__).joinpath(f"{name}.lua").read_bytes()
        # Redis names scripts by SHA-1; nothing here rests on its strength.
        return cls(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())

    def command(self, key: bytes, *arguments: bytes | str | int) -> Command:
        return Command(self, key, arguments)


@dataclass(frozen=True, slots=True)
class Command:
    """A script for one key: so that Cluster can route it, and a batch can be pipelined."""

    script: Script
    key: bytes
    arguments: tuple[bytes | str | int, ...]

    def by_digest(self) -> bytes:
        return pack(b"EVALSHA", self.script.sha, b"1", self.key, *self.arguments)

    def by_source(self) -> bytes:
        return pack(b"EVAL", self.script.source, b"1", self.key, *self.arguments)


def pack(*words: bytes | str | int) -> bytes:
    """One command as the server reads it. redis-py's packer takes four times as long for ours, which
    are many short words, and is half of the cost of a batch."""
    encoded = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n%b" % (
        len(encoded),
        b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in encoded]),
    )


ACQUIRE = Script.load("acquire")
RENEW = Script.load("renew")
RESTORE = Script.load("restore")
RELEASE = Script.load("release")
FORCE_RELEASE = Script.load("force_release")
PEEK = Script.load("peek")
MEET = Script.load("meet")
