"""What the protocols say to who carries it to the nodes, and what they hear."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

Incarnation = str
"""Names one life of a node's memory. See `repair`."""


class Step(Enum):
    """What a node can be asked to do. All but `PROPOSE` answer a number for each item."""

    PROPOSE = "propose"
    CONFIRM = "confirm"
    WITHDRAW = "withdraw"
    RENEW = "renew"
    RESTORE = "restore"
    RELEASE = "release"
    ASK = "ask"
    """Anything else that the store means to ask."""


class Heard(NamedTuple):
    """What a node answered, and its incarnation; `replies` is None if it was asked in another one."""

    incarnation: Incarnation
    replies: Sequence[Any] | None


@dataclass(slots=True)
class Round:
    """Ask nodes, all at the same time. `shares`: the places of the items, by node.

    `guess`: with `Step.PROPOSE`, a fence that nodes may confirm at once; 0 for none.
    `under`: the incarnations to act in, where an earlier round of the same protocol counts; otherwise
    those that were known before this round began.
    `waits`: False if nobody cares for the answers.
    """

    step: Step
    attempt: int
    shares: Mapping[int, Sequence[int]]
    fences: Mapping[int, int] = field(default_factory=dict)
    guess: int = 0
    under: Mapping[int, Incarnation] | None = None
    waits: bool = True


class Pause(NamedTuple):
    seconds: float


class NoMajority(Exception):
    """Too few nodes answered. What was asked for may have been done by some."""


Everything = Mapping[int, Heard]
Result = TypeVar("Result")
Talk = Generator[Round | Pause, Everything, Result]


@dataclass(frozen=True, slots=True)
class Size:
    nodes: int

    @property
    def majority(self) -> int:
        return self.nodes // 2 + 1

    @property
    def donors(self) -> int:
        """How many nodes know, between them, all that a majority confirmed, if it was not they alone
        who forgot it: they share a node with what is left of every majority."""
        return self.nodes - self.majority + 1
