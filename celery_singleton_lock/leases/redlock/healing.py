"""How a node that lost its memory is taken back, without I/O: driven as the protocols of `quorum` are.

A node is not believed after a restart, whatever its snapshot says: the last writes may be missing. It
is kept out until enough of the others gave it what a majority knows. Each donor takes a new incarnation
*before* it gives: a grant that the node confirmed before it forgot, and that the donor was still to
confirm, is then refused by the donor. Otherwise the node would have confirmed what nobody can tell it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from .quorum import Incarnation, Size


class Chore(Enum):
    """What a node is asked to do for a repair."""

    CLAIM = "claim"
    """Give me alone the right to repair you. Answers True, or None."""
    REFRESH = "refresh"
    """Take a new incarnation. Answers it."""
    DUMP = "dump"
    """Tell all that you know, in this incarnation."""
    FILL = "fill"
    """Add this to what you know. Done only for who has the right to repair."""
    ADMIT = "admit"
    """You know enough: take an incarnation, and part again. Only for who has the right."""


@dataclass(frozen=True, slots=True)
class Errand:
    """Ask these nodes; a node that does not do it is missing from what is sent back."""

    chore: Chore
    nodes: Sequence[int]
    cargo: Any = None
    under: Mapping[int, Incarnation] = field(default_factory=dict)


Mending = Generator[Errand, Mapping[int, Any], bool]


def repair(size: Size, target: int, intact: Mapping[int, Incarnation]) -> Mending:
    """Whether `target` takes part again. `intact`: the nodes that do, with their incarnations."""
    if len(intact) < size.donors or not (yield Errand(Chore.CLAIM, [target])):
        return False
    refreshed = yield Errand(Chore.REFRESH, list(intact), under=intact)
    if len(refreshed) < size.donors:
        return False
    dumps = yield Errand(Chore.DUMP, list(refreshed), under=refreshed)
    if len(dumps) < size.donors:
        return False
    for dump in dumps.values():
        if not (yield Errand(Chore.FILL, [target], dump)):
            return False
    return bool((yield Errand(Chore.ADMIT, [target])))
