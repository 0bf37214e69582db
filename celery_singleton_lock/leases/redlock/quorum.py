"""The protocol of a lease over N independent nodes, without I/O.

Each protocol is a generator. It yields a `Round` (send this to these nodes) or a `Pause`, is sent what
was heard, and returns its verdict; the network and the simulator of the tests drive the same code.

Why it is right, in short. A grant is confirmed by a majority, and each node confirms only if that
raises its counter: two grants share a node, so their fences differ and grow. A node acts only in the
incarnation that the round was begun in: what it confirmed before it lost its memory never counts
together with what others confirm after it was repaired. See docs/redlock.md.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from celery_singleton_lock.leases.base import Grant, Renewal, Verdict

from .rounds import Incarnation, NoMajority, Pause, Round, Size, Step, Talk
from .votes import MINE, TAKEN, Candidate, Contested, Vote, judge

ANEW: Final = 4
"""How often a round is begun again because nodes had changed their incarnation."""


class Quorum:
    """The protocols, for a number of nodes.

    `rest(attempt)` returns the seconds to wait before one. `guess()` returns what is most likely beyond
    every counter, and not far from the nodes' time. A node confirms it at once if it is: then the first
    phase is also the second, and the counters need not be known to grow.
    """

    def __init__(
        self,
        nodes: int,
        *,
        tries: int = 12,
        rest: Callable[[int], float] | None = None,
        guess: Callable[[], int] = lambda: 0,
    ) -> None:
        self._guess = guess
        self.size = Size(nodes)
        self.everyone = range(nodes)
        self._tries = tries
        self._rest = rest or jittered

    # Granting

    def acquire(self, count: int) -> Talk[list[Verdict]]:
        """A verdict for each of `count` requests. Raises `NoMajority`, with nothing kept."""
        verdicts: list[Verdict | None] = [None] * count
        left: Sequence[int] = range(count)
        for attempt in range(self._tries):
            if attempt:
                yield Pause(self._rest(attempt))
            left = yield from self._attempt(attempt, left, verdicts, attempt == self._tries - 1)
            if not left:
                break
        return [verdict for verdict in verdicts if verdict is not None]

    def _attempt(
        self, attempt: int, left: Sequence[int], verdicts: list[Verdict | None], is_last: bool
    ) -> Talk[list[int]]:
        """Returns the places that must be tried again."""
        proposal = dict.fromkeys(self.everyone, left)
        heard = yield Round(Step.PROPOSE, attempt, proposal, guess=self._guess())
        answers = {node: said.replies for node, said in heard.items() if said.replies is not None}
        if len(answers) < self.size.majority:
            yield self._withdrawal(attempt, dict.fromkeys(self.everyone, left))
            if is_last or len(heard) < self.size.majority:
                raise NoMajority
            return list(left)
        again: list[int] = []
        candidates: dict[int, Candidate] = {}
        unwanted: dict[int, list[int]] = {}
        silent = [node for node in self.everyone if node not in answers]
        for place, cast in zip(left, zip(*answers.values(), strict=True), strict=True):
            first: Vote = cast[0]
            if first[0] == MINE and cast.count(first) == len(cast):
                # All agree, and that is a majority: no need to look closer. Nearly always.
                verdicts[place] = Grant(first[1], first[2], bool(first[3]))
                continue
            votes = list(zip(answers, cast, strict=True))
            judgement = judge(self.size, votes)
            if isinstance(judgement, Candidate):
                candidates[place] = judgement
                beyond = [node for node, vote in votes if vote[0] == MINE and vote[1] > judgement.fence]
                _share(unwanted, beyond, place)
                continue
            if isinstance(judgement, Contested):
                again.append(place)
                verdicts[place] = judgement.held
            else:
                verdicts[place] = judgement
            taken = [node for node, vote in votes if vote[0] in (TAKEN, MINE)]
            if taken:
                _share(unwanted, (*taken, *silent), place)
        if candidates:
            under = {node: heard[node].incarnation for node in answers}
            failed = yield from self._confirm(attempt, candidates, under, verdicts)
            for place in failed:
                _share(unwanted, self.everyone, place)
            if failed and is_last:
                yield self._withdrawal(attempt, unwanted)
                raise NoMajority
            again += failed
        if unwanted:
            yield self._withdrawal(attempt, unwanted)
        return sorted(again)

    def _confirm(
        self,
        attempt: int,
        candidates: Mapping[int, Candidate],
        under: Mapping[int, Incarnation],
        verdicts: list[Verdict | None],
    ) -> Talk[list[int]]:
        """Returns the places that no majority confirmed.

        Only nodes whose counters were seen are asked: another one may have been a donor meanwhile, and
        what it confirms now would not be known to whom it gave.
        """
        shares: dict[int, list[int]] = {}
        fences = {place: candidate.fence for place, candidate in candidates.items()}
        for place, candidate in candidates.items():
            _share(shares, candidate.nodes, place)
        acknowledged = {place: candidate.confirmed for place, candidate in candidates.items()}
        if shares:
            heard = yield Round(Step.CONFIRM, attempt, shares, fences, under=under)
            for node, said in heard.items():
                for place, is_confirmed in zip(shares[node], said.replies or (), strict=False):
                    acknowledged[place] += is_confirmed
        failed = []
        for place, candidate in candidates.items():
            if acknowledged[place] >= self.size.majority:
                verdicts[place] = Grant(candidate.fence, candidate.takeovers, candidate.again)
            else:
                failed.append(place)
        return failed

    def _withdrawal(self, attempt: int, shares: Mapping[int, Sequence[int]]) -> Round:
        return Round(Step.WITHDRAW, attempt, shares, waits=False)

    # Keeping and giving back

    def renew(self, count: int) -> Talk[list[Renewal]]:
        """Raises `NoMajority` if it cannot be known of one."""
        answers = yield from self._poll(Step.RENEW, count)
        votes = list(zip(*answers.values(), strict=True))
        renewals = [self._renewal(each) for each in votes]
        absent: dict[int, list[int]] = {}
        for place, renewal in enumerate(renewals):
            if renewal is Renewal.RENEWED:
                # Nodes that were away when it was granted, or for longer than its ttl, learn of it:
                # otherwise each such absence would cost the lease a node for good.
                told = zip(answers, votes[place], strict=True)
                nodes = [node for node, vote in told if vote in (3, 4)]
                _share(absent, nodes, place)
        if absent:
            yield Round(Step.RESTORE, 0, absent, waits=False)
        return renewals

    def _renewal(self, votes: Iterable[int]) -> Renewal:
        """Votes: 1 renewed | 2 refused | 3 forgotten | 4 ran out, nobody came since | 5 given back."""
        counts = Counter(votes)
        renewed, forgotten, lapsed, refused = counts[1], counts[3], counts[4], counts[2] + counts[5]
        if renewed >= self.size.majority:
            return Renewal.RENEWED
        if renewed + forgotten + lapsed >= self.size.majority and renewed + forgotten:
            return Renewal.FORGOTTEN
        if refused > self.size.nodes - self.size.majority or lapsed + refused >= self.size.majority:
            return Renewal.REFUSED
        raise NoMajority

    def are_last(self, count: int) -> Talk[list[bool]]:
        """Whether a majority knows of nobody who came since, for each.

        To be asked before what ran out is released with a position. A node that missed the next grant
        would record it, and be believed, though all others refuse.
        """
        answers = yield from self._poll(Step.RENEW, count)
        votes = zip(*answers.values(), strict=True)
        return [self._is_carried([int(vote in (1, 4, 5)) for vote in each]) for each in votes]

    def vote(self, step: Step, count: int) -> Talk[list[bool]]:
        """Whether a majority did it, for each; False if too many refused. Raises `NoMajority`."""
        answers = yield from self._poll(step, count)
        return [self._is_carried(each) for each in zip(*answers.values(), strict=True)]

    def _is_carried(self, votes: Sequence[int]) -> bool:
        if votes.count(1) >= self.size.majority:
            return True
        if votes.count(0) > self.size.nodes - self.size.majority:
            return False
        raise NoMajority

    def hear(self, count: int) -> Talk[list[Sequence[Any]]]:
        """What each node of a majority says to `count` questions. Raises `NoMajority`."""
        answers = yield from self._poll(Step.ASK, count)
        return list(answers.values())

    def _poll(self, step: Step, count: int) -> Talk[dict[int, Sequence[Any]]]:
        """What each node said to all items, in one round."""
        places = range(count)
        for attempt in range(ANEW):
            heard = yield Round(step, attempt, dict.fromkeys(self.everyone, places))
            answers = {node: said.replies for node, said in heard.items() if said.replies is not None}
            if len(answers) >= self.size.majority:
                return answers
            if len(heard) < self.size.majority:
                break
            # Some took a new incarnation meanwhile. What the others did may not be counted together
            # with what these do now: all are asked again.
        raise NoMajority


def _share(shares: dict[int, list[int]], nodes: Iterable[int], place: int) -> None:
    for node in nodes:
        shares.setdefault(node, []).append(place)


def jittered(attempt: int) -> float:
    """Rivals that split the nodes between them must not meet again: up to 2 ms, then up to 128 ms."""
    longest = 0.002 * float(2 ** min(attempt - 1, 6))
    return random.uniform(0.1, 1.0) * longest  # nosec B311 # noqa: S311 - jitter, not a secret
