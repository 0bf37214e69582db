"""The quorum in a world of virtual time: what may never happen, and that it would be seen."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from celery_singleton_lock.core.models import Done
from celery_singleton_lock.leases.redlock.healing import Chore, Errand, Mending
from celery_singleton_lock.leases.redlock.quorum import Quorum
from celery_singleton_lock.leases.redlock.rounds import Round, Size, Step
from celery_singleton_lock.leases.redlock.votes import (
    DONE,
    HELD,
    MINE,
    TAKEN,
    Candidate,
    Contested,
    Vote,
    judge,
)

from .quorum_world import Ask, Node, World, first_violation

SCHEDULES = 30_000
SHARES = 4
SECONDS_AT_MOST = 60
SEEN_WITHIN = 20_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("share", range(SHARES))
def test_no_schedule_breaks_fence_order_exclusion_or_memory(share: int) -> None:
    """A quarter of more schedules than it takes to see any of the mistakes below, or as many as a slow
    machine does in its time. `make soak-quorum` has millions, and others each time."""
    first = int(os.environ.get("QUORUM_SEED", "0")) + share * SCHEDULES // SHARES
    give_up_at = time.monotonic() + SECONDS_AT_MOST
    done = 0
    while done < SCHEDULES // SHARES and time.monotonic() < give_up_at:
        some = range(first + done, first + done + 500)
        violation = first_violation(World, some)
        assert violation is None, violation
        done += len(some)
    print(f"{done} schedules from seed {first}")


# Each of these is a way to get it wrong. The simulator must see it.


class NodeThatCounts(Node):
    """max-of-INCR: a counter that every asker raises, and no second phase."""

    def propose(self, ask: Ask, attempt: int, fence: int) -> Vote:
        vote = super().propose(ask, attempt, fence)
        if vote[0] != TAKEN:
            return vote
        self.memory.fence += 1
        self.memory.pending, self.memory.until = False, self.now() + 1_000_000
        return TAKEN, self.memory.fence - 1, 0, 0, self.memory.fence

    def renew(self, ask: Ask, attempt: int, fence: int) -> int:
        return super().renew(self._as_known(ask), attempt, fence)

    def release(self, ask: Ask, attempt: int, fence: int) -> int:
        return super().release(self._as_known(ask), attempt, fence)

    def _as_known(self, ask: Ask) -> Ask:
        return Ask(ask.owner, ask.call, self.memory.fence, False, ask.position)

    def confirm(self, ask: Ask, attempt: int, fence: int) -> int:
        return 1


class NodeThatDoesNotCompare(Node):
    def confirm(self, ask: Ask, attempt: int, fence: int) -> int:
        it = self.memory
        it.owner, it.fence, it.call, it.pending = ask.owner, fence, ask.call, False
        it.until = self.now() + 1_000_000
        return 1


class NodeThatIsAlwaysBelieved(Node):
    checks_incarnation = False


class QuorumThatDoesNotUndo(Quorum):
    def _withdrawal(self, attempt: int, shares: Any) -> Round:
        return Round(Step.WITHDRAW, attempt, {}, waits=False)


def found_by_claiming_all_at_once(size: Size) -> Mending:
    everyone = range(size.nodes)
    if len((yield Errand(Chore.SURVEY, everyone))) < size.nodes:
        return False
    for chore in (Chore.CLAIM, Chore.ADMIT):
        if len((yield Errand(chore, everyone))) < size.nodes:
            return False
    return True


def found_if_a_majority_is_new(size: Size) -> Mending:
    blank = yield Errand(Chore.SURVEY, range(size.nodes))
    if len(blank) < size.majority:
        return False
    for chore in (Chore.CLAIM, Chore.ADMIT):
        for node in blank:
            if not (yield Errand(chore, [node])):
                return False
    return True


BUGS: dict[str, dict[str, Any]] = {
    "max-of-INCR as the fence": {"node_type": NodeThatCounts},
    "no compare in phase 2": {"node_type": NodeThatDoesNotCompare},
    "no incarnation check": {"node_type": NodeThatIsAlwaysBelieved},
    "no undo": {"quorum_type": QuorumThatDoesNotUndo},
    "validity counted from the answer": {"counts_from_request": False},
    "donors that take no new incarnation": {"refreshes_donors": False},
    "a beginning for which rivals hold up each other": {
        "found": staticmethod(found_by_claiming_all_at_once)
    },
    "a beginning though not all nodes are new": {"found": staticmethod(found_if_a_majority_is_new)},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_simulator_sees_what_is_wrong(bug: str) -> None:
    broken = type("BrokenWorld", (World,), BUGS[bug])
    violation = first_violation(broken, range(SEEN_WITHIN))
    assert violation is not None
    print(violation)


FREE: Vote = (TAKEN, 50, 0, 0, 0)


def votes_of(*votes: Vote) -> list[tuple[int, Vote]]:
    return list(enumerate(votes))


def test_fence_is_beyond_every_counter_and_clock_of_its_majority() -> None:
    judged = judge(Size(3), votes_of(FREE, (TAKEN, 70, 0, 0, 70)))
    assert judged == Candidate(71, [0, 1], 0, 0, False)


def test_one_node_that_says_done_is_believed() -> None:
    done: Vote = (DONE, 7, "ok", 0, 9)
    assert judge(Size(5), votes_of(FREE, FREE, FREE, done, (DONE, 6, "", 0, 9))) == Done(7, "ok")


def test_owner_that_asks_again_keeps_its_fence_while_nobody_came_since() -> None:
    mine: Vote = (MINE, 60, 0, 1, 60)
    assert judge(Size(3), votes_of(mine, FREE)) == Candidate(60, [1], 1, 0, True)
    judged = judge(Size(3), votes_of(mine, (TAKEN, 80, 0, 0, 80)))
    assert judged == Candidate(81, [0, 1], 0, 0, False)


def test_owner_that_asks_again_keeps_its_fence_though_a_node_that_missed_it_took_a_larger_one() -> None:
    mine, guessed = (MINE, 60, 0, 1, 60), (MINE, 90, 0, 0, 90)
    assert judge(Size(3), votes_of(mine, mine, guessed)) == Candidate(60, [], 2, 0, True)
    assert judge(Size(5), votes_of(mine, mine, mine, FREE)) == Candidate(60, [3], 3, 0, True)
    judged = judge(Size(5), votes_of(mine, mine, guessed))
    assert judged == Candidate(90, [0, 1], 1, 0, True)


def test_held_is_said_only_if_a_grant_stands_in_the_way() -> None:
    granted: Vote = (HELD, 1000, "a", 1, 60)
    asking: Vote = (HELD, 1000, "b", 0, 60)
    assert not isinstance(judge(Size(3), votes_of(granted, granted, FREE)), Contested)
    assert isinstance(judge(Size(3), votes_of(asking, asking, FREE)), Contested)
    assert isinstance(judge(Size(5), votes_of(granted, asking, asking, FREE, FREE)), Contested)


@pytest.mark.parametrize(
    ("nodes", "majority", "donors"), [(3, 2, 2), (4, 3, 2), (5, 3, 3), (6, 4, 3), (7, 4, 4)]
)
def test_donors_share_a_node_with_what_is_left_of_every_majority(
    nodes: int, majority: int, donors: int
) -> None:
    size = Size(nodes)
    assert (size.majority, size.donors) == (majority, donors)
    forgot = nodes - majority
    assert donors + (majority - forgot) > nodes - forgot
