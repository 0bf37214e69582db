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

    def by_digest(self) -> tuple[bytes | str | int, ...]:
        return (b"EVALSHA", self.script.sha, 1, self.key, *self.arguments)

    def by_source(self) -> tuple[bytes | str | int, ...]:
        return (b"EVAL", self.script.source, 1, self.key, *self.arguments)


ACQUIRE = Script.load("acquire")
RENEW = Script.load("renew")
RESTORE = Script.load("restore")
RELEASE = Script.load("release")
FORCE_RELEASE = Script.load("force_release")
PEEK = Script.load("peek")
MEET = Script.load("meet")
