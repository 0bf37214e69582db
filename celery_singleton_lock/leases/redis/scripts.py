"""The Lua scripts, and how to call them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final

MOST_KEYS: Final = 200
"""In one call of a script. The server does nothing else meanwhile: that should take less than 1 ms."""

Word = bytes | str | int


@dataclass(frozen=True, slots=True)
class Script:
    source: bytes
    sha: bytes

    @classmethod
    def load(cls, name: str) -> Script:
        folder = resources.files(__package__)
        source = b"".join([folder.joinpath(each).read_bytes() for each in ("batch.lua", f"{name}.lua")])
        # Redis names scripts by SHA-1; nothing here rests on its strength.
        return cls(source, hashlib.sha1(source, usedforsecurity=False).hexdigest().encode())


@dataclass(frozen=True, slots=True)
class Command:
    """A script for some keys. Its arguments: a row of them for each key, then those that all share."""

    script: Script
    keys: Sequence[bytes]
    rows: Sequence[tuple[Word, ...]]
    shared: tuple[Word, ...] = ()

    def only(self, places: Sequence[int]) -> Command:
        """The same for the keys at these places."""
        keys = [self.keys[at] for at in places]
        return Command(self.script, keys, [self.rows[at] for at in places], self.shared)

    def by_digest(self) -> bytes:
        return pack([b"EVALSHA", self.script.sha, *self._words()])

    def by_source(self) -> bytes:
        return pack([b"EVAL", self.script.source, *self._words()])

    def _words(self) -> list[Word]:
        if len(self.keys) == 1:
            return [b"1", self.keys[0], *self.rows[0], *self.shared]
        words: list[Word] = [len(self.keys), *self.keys]
        shape = ""
        for column in zip(*self.rows, strict=True):
            # Most are equal in a batch: what is sent once is read once, too.
            is_one = column.count(column[0]) == len(column)
            words += column[:1] if is_one else column
            shape += "1" if is_one else "n"
        return [*words, *self.shared, shape + "1" * len(self.shared)]


def chunks(places: Sequence[int]) -> list[Sequence[int]]:
    """Each as many as one call of a script may have."""
    return [places[start : start + MOST_KEYS] for start in range(0, len(places), MOST_KEYS)]


# To write such a number takes longer than all else that is done for a word.
_SIZES: Final = [b"\r\n$%d\r\n" % size for size in range(2048)]


def pack(words: Sequence[Word]) -> bytes:
    """One command as the server reads it. redis-py's packer takes four times as long for ours, which
    are many short words, and is half of the cost of a batch."""
    parts = [b"*%d" % len(words)]
    for word in words:
        encoded = word if isinstance(word, bytes) else str(word).encode()
        size = len(encoded)
        parts.append(_SIZES[size] if size < len(_SIZES) else b"\r\n$%d\r\n" % size)
        parts.append(encoded)
    parts.append(b"\r\n")
    return b"".join(parts)


ACQUIRE = Script.load("acquire")
RENEW = Script.load("renew")
RESTORE = Script.load("restore")
RELEASE = Script.load("release")
FORCE_RELEASE = Script.load("force_release")
PEEK = Script.load("peek")
MEET = Script.load("meet")
EXPIRED = Script.load("expired")
DISMISS = Script.load("dismiss")
WRITE = Script.load("write")
READ = Script.load("read")
