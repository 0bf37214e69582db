"""Which rows may be published at the same time, and which must wait for each other. Pure.

Rows of one key are in one lane, and a lane is worked by one relay at a time. So relays share the work,
and the order of a key is in one pair of hands.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

LANES: Final = 16
LANES_AT_ONCE: Final = 4
"""A relay takes so many, and leaves the others to those beside it."""
LOCKS: Final = 1024
"""Keys are locked by so many locks: a transaction holds no more, however many keys it sends for."""


@dataclass(frozen=True, slots=True)
class Pending:
    """A row that is to be published. Two with one id are the same."""

    id: int
    key: str | None = field(compare=False)
    task_id: str = field(compare=False)
    tries: int = field(compare=False)
    note: dict[str, Any] | None = field(compare=False, repr=False)
    """None: what the row has there is no message."""

    @property
    def destination(self) -> Hashable:
        note = self.note or {}
        return tuple(note.get(name) for name in ("exchange", "routing_key", "queue", "compression"))


def lane_of(key: str | None) -> int:
    """Without a key any will do: then they are shared out evenly."""
    if key is None:
        return random.randrange(LANES)  # nosec B311 # noqa: S311 - no secret
    return zlib.crc32(key.encode()) % LANES


def lock_of(key: str) -> int:
    return zlib.crc32(b"lock:" + key.encode()) % LOCKS


def rounds(rows: Sequence[Pending], *, one_by_one: bool) -> list[list[Pending]]:
    """Rows that may be sent together, in order; each of these when what is before it is confirmed.

    A row must not be taken by the broker if one before it, of the same key, is not. All that go to one
    place are taken or refused together; but for a queue that is full now, and not a moment later: where
    the broker tells (`one_by_one`), each waits for the one before it.
    """
    found: list[list[Pending]] = []
    at: dict[str, tuple[int, Hashable]] = {}
    for row in rows:
        number = 0
        if row.key is not None:
            last, destination = at.get(row.key, (-1, None))
            is_next = last < 0 or one_by_one or destination != row.destination
            number = last + 1 if is_next else last
            at[row.key] = (number, row.destination)
        while len(found) <= number:
            found.append([])
        found[number].append(row)
    return found
