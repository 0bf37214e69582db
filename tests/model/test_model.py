"""Every state that the protocol can reach with a few faults; and that each wrong order is found."""

from __future__ import annotations

import pytest

from .explorer import Explored, Step, explore
from .protocol import Protocol


def look_at(protocol: Protocol) -> Explored:
    return explore(protocol.first(), protocol.steps, protocol.wrong_always, protocol.wrong_at_rest)


@pytest.mark.parametrize(
    "protocol",
    [
        Protocol(beats=2, workers=2, faults=3),
        # How it was published is told by the first; the second is about the letter.
        Protocol(beats=1, workers=2, faults=3, task_fails=True),
    ],
    ids=["succeeds", "fails"],
)
def test_nothing_is_lost_nor_done_twice_whatever_happens(protocol: Protocol) -> None:
    explored = look_at(protocol)
    assert explored.finding is None, str(explored.finding)
    assert explored.states > 10_000  # it went far enough to see something


BUGS = [
    ("record before publish", False, "the slot is lost"),
    ("acknowledge before letter", True, "the letter is lost"),
    ("release without fence check", False, "two executions hold the run"),
    ("no done marker", False, "a finished run began again"),
    ("no look after the body", False, "the success of a run was told twice"),
    ("no takeover", False, "the run is lost"),
    ("begin without lease", False, "two executions hold the run"),
]


@pytest.mark.parametrize(("bug", "task_fails", "found"), BUGS, ids=[bug for bug, _, _ in BUGS])
def test_a_wrong_order_is_found(bug: str, task_fails: bool, found: str) -> None:
    finding = look_at(Protocol(task_fails=task_fails, bug=bug)).finding
    assert finding is not None
    assert found in finding.what, str(finding)


def test_the_explorer_finds_a_circle() -> None:
    explored = explore(0, lambda state: [Step("on", (state + 1) % 3)], lambda _: None, lambda _: None)
    assert explored.finding is not None
    assert explored.finding.what == "it goes round for ever"


def test_the_explorer_tells_the_shortest_way() -> None:
    explored = explore(
        1,
        lambda state: [Step("add", state + 1), Step("double", 2 * state)] if state < 20 else [],
        lambda state: "too much" if state == 10 else None,
        lambda _: None,
    )
    assert explored.finding is not None
    assert explored.finding.steps == ("add", "double", "add", "double")
