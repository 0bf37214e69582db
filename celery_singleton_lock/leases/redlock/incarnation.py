"""Which life of its memory a node is in."""

from __future__ import annotations

import os
import time
from typing import Final, NamedTuple, Self

_RUN_ID: Final = 40
_NONCE: Final = 16
_GENERATION: Final = 16
LENGTH: Final = _RUN_ID + _NONCE + _GENERATION + 2


class Token(NamedTuple):
    """Kept in the node, as a text of fixed length, beside what it remembers.

    `run_id`: the server's, when it was taken in. A restart changes the server's own and not what is
    kept: that they differ is how a loss of memory is noticed, whatever a snapshot says.
    `nonce`: taken anew by who gives to another.
    `generation`: of all nodes together. A new one begins when a majority lost its memory, and an
    operator accepted that.
    """

    run_id: str
    nonce: str
    generation: str

    @classmethod
    def read(cls, kept: bytes | None) -> Self | None:
        """None: nothing is kept there, or nothing of ours."""
        parts = (kept or b"").decode(errors="replace").split(" ")
        return cls(*parts) if len(parts) == 3 else None

    @classmethod
    def new(cls, run_id: str, generation: str) -> Self:
        return cls(run_id, os.urandom(_NONCE // 2).hex(), generation)

    def __str__(self) -> str:
        return " ".join(self)


def new_generation() -> str:
    """Later ones compare greater."""
    return f"{time.time_ns() // 1000:0{_GENERATION}d}"[-_GENERATION:]


def quorum_key(prefix: str) -> bytes:
    """Where a node keeps its incarnation."""
    return f"{prefix}.{{quorum}}".encode()
