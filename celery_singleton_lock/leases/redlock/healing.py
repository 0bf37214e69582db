"""How nodes are taken in and back, without I/O: driven as the protocols of `quorum` are.

New nodes begin together, and only if all of them are new: one that is away might know more.

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

from .rounds import Incarnation, Size


class Chore(Enum):
    """What a node is asked to do by who takes it in. Nothing is answered for what is not done."""

    SURVEY = "survey"
    """Say whether you are blank: have never taken part, or have forgotten that you did."""
    CLAIM = "claim"
    """Give me alone the right to take you in, for a while. Not if you take part."""
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


def found(size: Size) -> Mending:
    """Whether all nodes take part now. They do not if one of them knows more than nothing, or somebody
    else is about it."""
    everyone = range(size.nodes)
    if len((yield Errand(Chore.SURVEY, everyone))) < size.nodes:
        return False
    # The first node first: who has that one is not disturbed by others who try the same.
    for node in everyone:
        if not (yield Errand(Chore.CLAIM, [node])):
            return False
    for node in everyone:
        if not (yield Errand(Chore.ADMIT, [node])):
            return False
    return True


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
