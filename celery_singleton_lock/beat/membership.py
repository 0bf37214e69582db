"""Who looks at an entry first: a ranking that every replica computes alike. A hint, never a right."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b


def rank(replica: str, members: Sequence[str], entry: str) -> int:
    """The place of `replica` among `members` for `entry`, by rendezvous hashing: 0 acts first.

    When a member comes or goes, only the entries it was first for change hands. A replica that is not
    among the members (its heartbeat is late) comes after them.
    """
    if replica not in members:
        return len(members)
    mine = _weight(replica, entry)
    return sum(_weight(member, entry) > mine for member in members if member != replica)


def _weight(member: str, entry: str) -> bytes:
    return blake2b(f"{member}\0{entry}".encode(), digest_size=8).digest()
