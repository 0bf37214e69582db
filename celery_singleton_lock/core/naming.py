"""Names that nobody else makes, for things that are told apart by them."""

from __future__ import annotations

import os
import random
from typing import Final

# Not `random` itself, which a program may seed to be the same on every host; and not the system's own
# source, which takes as long as a lease.
_chance: Final = random.Random()  # nosec B311 # noqa: S311 - a name, not a secret
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_chance.seed)


def fresh_name() -> str:
    """16 hexadecimal digits."""
    return f"{_chance.getrandbits(64):016x}"
