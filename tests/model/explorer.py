"""Looks at every state that a model can reach, and tells the shortest way to the first bad one."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """`is_fault`: it may happen, but nobody can count on it."""

    name: str
    state: S
    is_fault: bool = False


@dataclass(frozen=True)
class Finding:
    """What is wrong, and the steps that lead there."""

    what: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}, after: " + ", ".join(self.steps)


@dataclass(frozen=True)
class Explored:
    states: int
    finding: Finding | None


def explore(
    first: S,
    steps: Callable[[S], Iterable[Step[S]]],
    wrong_always: Callable[[S], str | None],
    wrong_at_rest: Callable[[S], str | None],
) -> Explored:
    """Breadth first. A state is at rest when nothing but a fault can happen in it.

    Without faults every way must come to rest: one that leads in a circle is found, too. So what holds
    at rest is what happens in the end, once there are no more faults.
    """
    came_from: dict[S, tuple[S, str] | None] = {first: None}
    onward: dict[S, list[S]] = {}
    ring = [first]
    while ring:
        following: list[S] = []
        for state in ring:
            taken = list(steps(state))
            onward[state] = [step.state for step in taken if not step.is_fault]
            wrong = wrong_always(state) or (None if onward[state] else wrong_at_rest(state))
            if wrong:
                return Explored(len(came_from), Finding(wrong, _way(came_from, state)))
            for step in taken:
                if step.state not in came_from:
                    came_from[step.state] = state, step.name
                    following.append(step.state)
        ring = following
    circle = _circle(onward)
    found = None if circle is None else Finding("it goes round for ever", _way(came_from, circle))
    return Explored(len(came_from), found)


def _way(came_from: dict[S, tuple[S, str] | None], state: S) -> tuple[str, ...]:
    names: list[str] = []
    before = came_from[state]
    while before is not None:
        names.append(before[1])
        before = came_from[before[0]]
    return tuple(reversed(names))


def _circle(onward: dict[S, list[S]]) -> S | None:
    """A state from which a way leads back to it; None if there is none."""
    done: set[S] = set()
    for first in onward:
        if first in done:
            continue
        path: dict[S, Iterator[S]] = {first: iter(onward[first])}
        while path:
            state = next(reversed(path))
            following = next(path[state], None)
            if following is None:
                done.add(state)
                del path[state]
            elif following in path:
                return following
            elif following not in done:
                path[following] = iter(onward[following])
    return None
