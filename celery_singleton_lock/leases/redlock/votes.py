"""What the votes of a majority say of one lease."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from statistics import median_low
from typing import Any, Final, NamedTuple

from celery_singleton_lock.core.models import Done, Held

from .rounds import Size

TAKEN: Final = 1
HELD: Final = 0
DONE: Final = 2
MINE: Final = 3

PENDING: Final = 0
"""Held by who has no fence yet."""
GRANTED: Final = 1
FRESH: Final = 2
"""Held with a fence, for so short a time that it may yet be withdrawn, for want of a majority."""

VOTE_WIDTH: Final = 5

Vote = tuple[int, int, Any, int, int]
"""What a node answers to `Step.PROPOSE`:

| | | | | |
|---|---|---|---|---|
| TAKEN | max(counter, node's time in µs) | takeovers | 0 | counter |
| MINE | fence | takeovers | 1 if an earlier call was granted it | counter |
| HELD | remaining µs | by | `GRANTED`, `FRESH` or `PENDING` | counter |
| DONE | position | outcome | 0 | counter |
"""


class Candidate(NamedTuple):
    """A grant that needs confirmation: by `nodes`, beside the `confirmed` ones."""

    fence: int
    nodes: Sequence[int]
    confirmed: int
    takeovers: int
    again: bool


class Contested(NamedTuple):
    """Nobody has a majority yet: those who hold it up are themselves asking."""

    held: Held


Judgement = Candidate | Contested | Held | Done


def judge(size: Size, votes: Sequence[tuple[int, Vote]]) -> Judgement:
    """The votes, as (node, vote), of at least a majority for one lease."""
    done = [vote for _, vote in votes if vote[0] == DONE]
    if done:
        # A node knows a position because a holder wrote it there: one is enough to believe it.
        _, position, outcome, _, _ = max(done, key=lambda vote: vote[1])
        return Done(position, outcome or None)
    supporters = [(node, vote) for node, vote in votes if vote[0] != HELD]
    if len(supporters) >= size.majority:
        return _candidate(size, supporters)
    held = [vote for _, vote in votes if vote[0] == HELD]
    fenced = [vote for vote in held if vote[3] != PENDING]
    by = max(fenced or held, key=lambda vote: (vote[4], vote[1]))[2]
    granted = [vote for vote in fenced if vote[3] == GRANTED]
    if sum(vote[2] == by for vote in fenced) >= size.majority:
        granted = fenced
    # When so many have run out that the rest is a majority.
    waits = sorted([0] * len(supporters) + [vote[1] for vote in held])
    answer = Held(by, timedelta(microseconds=waits[size.majority - 1]))
    return answer if len(votes) - len(granted) < size.majority else Contested(answer)


def _candidate(size: Size, supporters: Sequence[tuple[int, Vote]]) -> Candidate:
    newest = max(vote[4] for _, vote in supporters)
    takeovers = median_low([vote[2] for _, vote in supporters if vote[4] == newest])
    mine = [vote for _, vote in supporters if vote[0] == MINE]
    known = _granted_before(size, mine)
    if known:
        # A node that missed it took this call's guess, and has a larger one: it is done without.
        others = [node for node, vote in supporters if vote[4] < known]
        return Candidate(known, others, sum(vote[1] == known for vote in mine), takeovers, True)
    known = max((vote[1] for vote in mine), default=0)
    others = [node for node, vote in supporters if not (vote[0] == MINE and vote[1] == known)]
    if known and all(vote[4] < known for node, vote in supporters if node in others):
        # Nobody was granted since: the owner's fence stands, and the others may learn it.
        again = any(vote[3] for vote in mine)
        return Candidate(known, others, len(supporters) - len(others), takeovers, again)
    fence = max(vote[1] for _, vote in supporters) + 1
    return Candidate(fence, [node for node, _ in supporters], 0, takeovers, False)


def _granted_before(size: Size, mine: Sequence[Vote]) -> int:
    """The fence that the owner was granted by an earlier call, as a majority says; 0 for none."""
    fences = Counter(vote[1] for vote in mine if vote[3])
    return next((fence for fence, count in fences.items() if count >= size.majority), 0)
