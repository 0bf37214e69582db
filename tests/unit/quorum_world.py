"""A world of virtual time for the quorum: nodes, a network, crashes and rivals, all from one seed.

The protocols are the real ones; the nodes are modelled, with the rules of the Lua scripts (a test holds
both to each other). Times are µs. A `Violation` names its seed: run that one again.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery_singleton_lock.leases.base import Grant, Renewal, Verdict
from celery_singleton_lock.leases.redlock import votes
from celery_singleton_lock.leases.redlock.healing import Chore, Errand, found, repair
from celery_singleton_lock.leases.redlock.quorum import Quorum
from celery_singleton_lock.leases.redlock.rounds import Heard, NoMajority, Pause, Round, Step
from celery_singleton_lock.leases.redlock.votes import DONE, FRESH, GRANTED, HELD, MINE, TAKEN

TTL = 1_000_000
PENDING = 300_000
PATIENCE = 200_000
NEWS = 100_000
GUESSES_WITHIN = 1_000_000
SLOWEST = 20_000
"""How long an ordinary message takes at most."""
DRIFT = 0.01
RIGHT = 700_000
"""How long the right to take a node in lasts: long for a message, and short for a pause."""
Token = tuple[int, int]
BLANK: Token = (0, 0)


class Violation(AssertionError):
    def __init__(self, seed: int, what: str) -> None:
        super().__init__(f"seed {seed}: {what}")


@dataclass(slots=True)
class Memory:
    """One record, and the node's incarnation."""

    owner: str = ""
    fence: int = 0
    until: int = 0
    since: int = 0
    pending: bool = False
    """Taken, or given back, by who was not confirmed: the fence is an earlier owner's."""
    claim: str = ""
    attempt: int = 0
    call: str = ""
    released: int = 0
    position: int = -1
    token: Token = BLANK
    ticket: int = 0
    ticket_until: int = 0


@dataclass(slots=True)
class Ask:
    """What one client wants of its lease."""

    owner: str
    call: str
    fence: int = 0
    is_held: bool = True
    position: int | None = None


class Node:
    """One server. `run` is its run id, which changes with a crash."""

    checks_incarnation = True

    def __init__(self, world: World) -> None:
        self.run = 1
        self.has_forgotten = False
        """It took part, lost its memory, and was not repaired since."""
        self.memory = Memory(token=BLANK if world.is_new else (1, 0))
        self.snapshot = replace(self.memory)
        self.rate = 1 + world.chance.uniform(-DRIFT, DRIFT) / 2
        self.offset = world.chance.randrange(3_000_000)
        self._world = world

    def now(self) -> int:
        return int(self._world.time * self.rate) + self.offset

    @property
    def is_in(self) -> bool:
        return self.memory.token[0] == self.run

    def crash(self, *, is_empty: bool) -> None:
        self.has_forgotten = self.has_forgotten or self.is_in
        self.run += 1
        self.memory = Memory() if is_empty else replace(self.snapshot)

    def handle(
        self, run: int, token: Token, step: Step, ask: Ask, attempt: int, fence: int
    ) -> Heard | None:
        """None: no answer, for the connection is not to this life of the server."""
        if self.checks_incarnation:
            if run != self.run:
                return None
            if token != self.memory.token or not self.is_in:
                return Heard(self.memory.token, None)  # type: ignore[arg-type]
        return Heard(token, [getattr(self, step.value)(ask, attempt, fence)])  # type: ignore[arg-type]

    def propose(self, ask: Ask, attempt: int, guess: int) -> tuple[int, int, Any, int, int]:
        it, now = self.memory, self.now()
        if ask.position is not None and it.position >= ask.position:
            return DONE, it.position, "", 0, it.fence
        is_same = it.claim == ask.call and it.attempt == attempt
        if it.until > now:
            if it.owner != ask.owner or (it.pending and it.claim == ask.call and attempt < it.attempt):
                kind = votes.PENDING if it.pending else FRESH if now - it.since < NEWS else GRANTED
                return HELD, it.until - now, it.owner, kind, it.fence
            if not it.pending:
                if it.claim == ask.call:
                    it.attempt = max(attempt, it.attempt)
                elif it.call != ask.call:
                    it.claim, it.attempt = ask.call, attempt
                it.until = max(it.until, now + TTL)
                return MINE, it.fence, 0, it.call != ask.call, it.fence
        if not (it.pending and is_same and it.until > now):
            it.since = now
        it.owner, it.pending, it.until = ask.owner, True, now + PENDING
        it.claim, it.attempt = ask.call, attempt
        if it.fence < guess and abs(guess - now) < GUESSES_WITHIN:
            it.fence, it.call, it.pending, it.until = guess, ask.call, False, now + TTL
            self._world.confirmed(self)
            return MINE, guess, 0, 0, guess
        return TAKEN, max(it.fence, it.since), 0, 0, it.fence

    def confirm(self, ask: Ask, attempt: int, fence: int) -> int:
        it = self.memory
        if it.owner != ask.owner or it.until == 0 or (it.claim, it.attempt) != (ask.call, attempt):
            return 0
        if it.fence >= fence:
            return int(it.fence == fence and not it.pending)
        it.fence, it.call, it.pending = fence, ask.call, False
        it.since = self.now()
        it.until = it.since + TTL
        self._world.confirmed(self)
        return 1

    def withdraw(self, ask: Ask, attempt: int, _: int) -> int:
        it = self.memory
        is_claimed = it.owner == ask.owner and (it.claim, it.attempt) == (ask.call, attempt)
        if is_claimed and (it.pending or it.call == ask.call):
            it.until, it.pending = 0, True
        return 1

    def renew(self, ask: Ask, _: int, __: int) -> int:
        it, now = self.memory, self.now()
        if it.owner == ask.owner and it.fence == ask.fence and not it.pending and it.until:
            if it.until <= now:
                return 4
            it.until = now + TTL
            return 1
        if it.released == ask.fence:
            return 5
        return 3 if it.fence < ask.fence else 2

    def restore(self, ask: Ask, _: int, __: int) -> int:
        it, now = self.memory, self.now()
        is_mine = it.owner == ask.owner and it.fence == ask.fence and not it.pending and it.until
        if not is_mine and (it.fence >= ask.fence or (it.until > now and it.owner != ask.owner)):
            return 0
        it.owner, it.fence, it.pending, it.until = ask.owner, ask.fence, False, now + TTL
        it.claim, it.since = "", now
        return 1

    def release(self, ask: Ask, _: int, __: int) -> int:
        it = self.memory
        if it.released == ask.fence:
            return 1
        is_mine = it.owner == ask.owner and it.fence == ask.fence
        if not is_mine and not (ask.is_held and it.fence < ask.fence):
            return 0
        it.pending = it.pending and is_mine
        it.owner, it.fence, it.until = ask.owner, ask.fence, 0
        it.released, it.call = ask.fence, ""
        if ask.position is not None:
            it.position = max(it.position, ask.position)
        return 1

    # Repair

    def do(self, run: int, token: Token | None, chore: Chore, cargo: Any, ticket: int) -> Any:
        it = self.memory
        if run != self.run or (token is not None and (token != it.token or not self.is_in)):
            return None
        if chore is Chore.SURVEY:
            return it.token == BLANK or None
        if chore is Chore.CLAIM:
            if self.is_in or (it.ticket and self.now() < it.ticket_until):
                return None
            it.ticket, it.ticket_until = ticket, self.now() + RIGHT
            return True
        if chore is Chore.REFRESH:
            it.token = self.new_token()
            return it.token
        if chore is Chore.DUMP:
            # What remains, for clocks differ; what ran out stays so.
            return replace(it, until=it.until and max(it.until - self.now(), 1))
        if it.ticket != ticket or self.now() >= it.ticket_until:
            return None
        if chore is Chore.FILL:
            self.merge(cargo)
        else:
            it.token, it.ticket, self.has_forgotten = self.new_token(), 0, False
        return True

    def new_token(self) -> Token:
        return self.run, next(self._world.nonces)

    def merge(self, known: Memory) -> None:
        it, now = self.memory, self.now()
        it.position = max(it.position, known.position)
        until = known.until and now + known.until
        if (known.owner, known.fence, known.pending) == (it.owner, it.fence, it.pending):
            it.until = max(it.until, until) if it.until and until else 0
            return
        # One of two that hold it may have been granted it, and only that one, or neither, may free it:
        # nobody is let in before both are over.
        blocked_until = max(it.until, until) if it.until > now and known.until > 1 else 0
        if (known.fence, not known.pending, not until) > (it.fence, not it.pending, not it.until):
            loser_until = it.until if it.until > now else 0
            it.owner, it.fence, it.pending, it.until = known.owner, known.fence, known.pending, until
            it.claim, it.attempt, it.call = known.claim, known.attempt, known.call
            it.released = known.released
        else:
            loser_until = until if known.until > 1 else 0
        if loser_until:
            it.owner, it.pending, it.claim = "", True, ""
            it.until = max(blocked_until, loser_until)


@dataclass(frozen=True, slots=True)
class Trouble:
    """How bad the world is; chances are of one message, or of one step of a client."""

    loss: float = 0.0
    duplication: float = 0.0
    long_delay: float = 0.0
    pause: float = 0.0
    crash: float = 0.0
    death: float = 0.0
    uneven: bool = False
    """Most messages are quick, and many take almost as long as anybody waits."""
    crash_after_confirm: float = 0.0
    """At once, and repaired at once: when a grant is half confirmed."""


CALM = Trouble()
KINDS = (
    CALM,
    Trouble(loss=0.1, duplication=0.1, long_delay=0.1),
    Trouble(long_delay=0.2, pause=0.15, death=0.2),
    Trouble(loss=0.03, duplication=0.05, long_delay=0.05, crash=0.3, pause=0.05, death=0.1),
    Trouble(long_delay=0.15, crash=0.6),
    Trouble(uneven=True, crash_after_confirm=0.4, death=0.3),
)


class World:
    """One schedule. `run` returns normally, or raises `Violation`."""

    node_type: type[Node] = Node
    quorum_type: type[Quorum] = Quorum
    counts_from_request = True
    refreshes_donors = True
    found = staticmethod(found)

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.is_new = self.chance.random() < 0.3
        """No node has taken part yet: the clients must agree on that first."""
        self.time = 0
        self.nonces = itertools.count(1)
        self._events: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.trouble = KINDS[seed % len(KINDS)]
        self.size = 3 if self.chance.random() < 0.6 else 5
        self.quorum = self.quorum_type(self.size, tries=3, rest=self._rest, guess=self._guess)
        self.nodes = [self.node_type(self) for _ in range(self.size)]
        self.history = History(seed)
        self._down_at_most = self.size - self.quorum.size.majority

    def _rest(self, attempt: int) -> float:
        return self.chance.uniform(0.0005, 0.05 * attempt)

    def _guess(self) -> int:
        """Right for about half of the nodes."""
        if self.chance.random() < 0.3:
            return 0
        return self.time + self.chance.randrange(500_000, 2_500_000)

    def run(self) -> None:
        for number in range(3):
            self.start(Client(self, f"c{number}"))
        if self.trouble.crash:
            for _ in range(3):
                if self.chance.random() < self.trouble.crash:
                    self.at(self.chance.randrange(3 * TTL), self._crash)
                self.at(self.chance.randrange(3 * TTL), self._take_snapshot)
        if self.is_new:
            for at in range(self.size):
                self.at(self.chance.randrange(2 * TTL), self._mend, at)
        self._drain()
        if self.is_new and self.trouble is CALM and not self.history.holdings:
            raise Violation(self.seed, "the nodes are new and well, and nobody began")

    def see_that_nothing_is_left(self, owner: str) -> None:
        for node in self.nodes:
            if node.memory.owner == owner and node.memory.until > node.now():
                raise Violation(self.seed, f"{owner} was refused, and holds up others")

    def start(self, client: Client) -> None:
        self._drive(client, client.life())

    def at(self, delay: int, call: Callable[..., None], *given: Any) -> None:
        heapq.heappush(self._events, (self.time + delay, next(self._order), call, given))

    def _drain(self) -> None:
        events = self._events
        while events:
            self.time, _, call, given = heapq.heappop(events)
            call(*given)

    # Network

    def delay(self) -> int:
        if self.trouble.long_delay and self.chance.random() < self.trouble.long_delay:
            return self.chance.randrange(2 * TTL)
        if self.trouble.uneven:
            return self.chance.randrange(150_000 if self.chance.random() < 0.4 else 3000)
        return 100 + int(self.chance.random() * (SLOWEST - 1000))

    def copies(self) -> int:
        trouble = self.trouble
        if not trouble.loss:
            return 1
        luck = self.chance.random()
        return 0 if luck < trouble.loss else 2 if luck < trouble.loss + trouble.duplication else 1

    # Clients

    def _drive(self, client: Client, talk: Generator[Any, Any, Any], heard: Any = None) -> None:
        try:
            wish = talk.send(heard)
        except StopIteration:
            return
        if isinstance(wish, Pause):
            self.at(int(wish.seconds * 1_000_000), self._drive, client, talk)
        elif isinstance(wish, Round):
            Exchange(self, client, talk, wish).begin()
        else:
            Haul(self, client, talk, wish).begin()

    def go_on(self, client: Client, talk: Generator[Any, Any, Any], heard: Any) -> None:
        if self.trouble.pause and self.chance.random() < self.trouble.pause:
            self.at(self.chance.randrange(2 * TTL), self._drive, client, talk, heard)
        else:
            self._drive(client, talk, heard)

    # Crashes

    def _take_snapshot(self) -> None:
        node = self.chance.choice(self.nodes)
        node.snapshot = replace(node.memory)

    def confirmed(self, node: Node) -> None:
        chance = self.trouble.crash_after_confirm
        if chance and self.chance.random() < chance:
            self.at(self.chance.randrange(1000), self._crash, node, 5000)

    def _crash(self, node: Node | None = None, mended_within: int = TTL // 2) -> None:
        node = node or self.chance.choice(self.nodes)
        forgotten = sum(each.has_forgotten for each in self.nodes)
        if not node.has_forgotten and forgotten >= self._down_at_most:
            return
        node.crash(is_empty=self.chance.random() < 0.5)
        self.at(self.chance.randrange(mended_within), self._mend, self.nodes.index(node))
        if self.chance.random() < 0.3:
            self.at(self.chance.randrange(TTL), self._mend, self.nodes.index(node))

    def _mend(self, target: int, attempts: int = 3) -> None:
        if self.nodes[target].is_in:
            return
        self._drive(Client(self, "mender"), self._mending(target, attempts))

    def _mending(self, target: int, attempts: int) -> Generator[Any, Any, None]:
        intact = {at: node.memory.token for at, node in enumerate(self.nodes) if node.is_in}
        mended = yield from repair(self.quorum.size, target, intact)  # type: ignore[arg-type]
        if not mended and attempts:
            self.at(self.chance.randrange(TTL // 4), self._mend, target, attempts - 1)


class Exchange:
    """One round: what was sent, and what came back in time."""

    def __init__(
        self, world: World, client: Client, talk: Generator[Any, Any, Any], wish: Round
    ) -> None:
        self.world, self.client, self.talk, self.wish = world, client, talk, wish
        self.heard: dict[int, Heard] = {}
        self.is_over = False
        # An answer that only a majority waits for may come too late, or not.
        self.enough = len(wish.shares)
        if world.trouble is not CALM and world.chance.random() < 0.3:
            self.enough = min(self.enough, world.quorum.size.majority)

    def begin(self) -> None:
        world, wish, client = self.world, self.wish, self.client
        for at, share in wish.shares.items():
            node = world.nodes[at]
            token = wish.under[at] if wish.under else client.knows(at)
            fence = wish.fences.get(share[0], 0) or wish.guess
            given = (at, token[0], token, wish.step, replace(client.ask), wish.attempt, fence)
            for _ in range(world.copies()):
                world.at(world.delay(), self._arrive, node, *given)
        if wish.waits:
            world.at(PATIENCE, self._end)
        else:
            self._end()

    def _arrive(self, node: Node, at: int, *given: Any) -> None:
        heard = node.handle(*given)
        if heard is not None and self.wish.waits and not self.is_over:
            world = self.world
            for _ in range(world.copies()):
                world.at(world.delay(), self._hear, at, heard)

    def _hear(self, at: int, heard: Heard) -> None:
        if self.is_over or at in self.heard:
            return
        self.heard[at] = heard
        if heard.replies is None:
            self.client.forget(at)
        if len(self.heard) >= self.enough:
            self._end()

    def _end(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        for at in self.wish.shares:
            if at not in self.heard:
                self.client.forget(at)
        self.world.go_on(self.client, self.talk, self.heard)


class Haul:
    """One errand of a founding or a repair."""

    def __init__(
        self, world: World, client: Client, talk: Generator[Any, Any, Any], wish: Errand
    ) -> None:
        self.world, self.client, self.talk, self.wish = world, client, talk, wish
        self.heard: dict[int, Any] = {}
        self.is_over = False

    def begin(self) -> None:
        world, wish = self.world, self.wish
        if wish.chore in (Chore.SURVEY, Chore.CLAIM):
            self.client.meet(wish.nodes)
        if wish.chore is Chore.REFRESH and not world.refreshes_donors:
            self.heard = dict(wish.under)
            self._end()
            return
        for at in wish.nodes:
            token: Any = wish.under.get(at)
            run = token[0] if token else self.client.met[at]
            given = (at, run, token, wish.chore, wish.cargo, self.client.ticket)
            for _ in range(world.copies()):
                world.at(world.delay(), self._arrive, *given)
        world.at(PATIENCE, self._end)

    def _arrive(self, at: int, *given: Any) -> None:
        said = self.world.nodes[at].do(*given)
        if said is not None and not self.is_over:
            for _ in range(self.world.copies()):
                self.world.at(self.world.delay(), self._hear, at, said)

    def _hear(self, at: int, said: Any) -> None:
        if self.is_over:
            return
        self.heard[at] = said
        if len(self.heard) == len(self.wish.nodes):
            self._end()

    def _end(self) -> None:
        if not self.is_over:
            self.is_over = True
            self.world.go_on(self.client, self.talk, self.heard)


class Client:
    """A rival: asks, holds, renews, gives back, or dies."""

    def __init__(self, world: World, name: str, lives: int = 2) -> None:
        self.world, self.name, self.lives = world, name, lives
        self.rate = 1 + world.chance.uniform(-DRIFT, DRIFT) / 2
        self.ask = Ask(name, "")
        self.ticket = next(world.nonces)
        self.met: dict[int, int] = {}
        """The lives of the nodes to which there is a connection."""
        self._has_seen_it_work = False
        self._tokens: dict[int, Token] = {}

    def now(self) -> float:
        return self.world.time * self.rate

    def knows(self, at: int) -> Token:
        token = self._tokens.get(at)
        if token is None:
            # As a new connection does: before the round, which may be sent much later.
            node = self.world.nodes[at]
            token = self._tokens[at] = (node.run, node.memory.token[1])
        return token

    def forget(self, at: int) -> None:
        self._tokens.pop(at, None)

    def meet(self, nodes: Sequence[int]) -> None:
        for at in nodes:
            self.met.setdefault(at, self.world.nodes[at].run)

    def come_together(self) -> Generator[Any, Any, None]:
        """As `Assembly` does it."""
        for _ in range(4):
            taking_part = sum(node.is_in for node in self.world.nodes)
            if taking_part >= self.world.quorum.size.majority:
                self._has_seen_it_work = True
            if self._has_seen_it_work:
                return
            self.ticket, self.met = next(self.world.nonces), {}
            yield from self.world.found(self.world.quorum.size)
            yield Pause(self.world.chance.random() * 0.1)

    def life(self) -> Generator[Any, Any, None]:
        chance = self.world.chance
        for number in range(self.lives):
            yield Pause(chance.random() * 0.8)
            if self.world.is_new:
                yield from self.come_together()
            position = None if chance.random() < 0.7 else chance.randrange(3)
            self.ask = Ask(f"{self.name}.{number}", f"{self.name}.{number}", position=position)
            grant = yield from self.acquire()
            if grant is None and self.world.trouble is not CALM and chance.random() < 0.3:
                # The answer may be all that was lost: the same owner asks again.
                self.ask = Ask(self.ask.owner, f"{self.ask.call}+", position=position)
                grant = yield from self.acquire()
            if grant is not None:
                yield from self.hold(grant)

    def acquire(self) -> Generator[Any, Any, Holding | None]:
        world = self.world
        asked_at, began = self.now(), world.time
        verdict: Verdict | None
        try:
            [verdict] = yield from world.quorum.acquire(1)
        except NoMajority:
            verdict = None
        if not isinstance(verdict, Grant):
            if world.trouble is CALM:
                world.at(SLOWEST, world.see_that_nothing_is_left, self.ask.owner)
            return None
        deadline = self.deadline(asked_at)
        self.ask.fence = verdict.fence
        if self.now() >= deadline:
            yield from self.give_back(None)
            return None
        return world.history.granted(self, verdict.fence, began, deadline)

    def deadline(self, asked_at: float) -> float:
        start = asked_at if self.world.counts_from_request else self.now()
        return start + TTL * (1 - DRIFT) - 2000

    def hold(self, holding: Holding) -> Generator[Any, Any, None]:
        chance, rounds = self.world.chance, self.world.quorum
        for _ in range(chance.randrange(3)):
            yield Pause(chance.random() * 0.5)
            if self.now() >= holding.deadline:
                break
            asked_at = self.now()
            try:
                [renewal] = yield from rounds.renew(1)
                if renewal is Renewal.FORGOTTEN:
                    [is_back] = yield from rounds.vote(Step.RESTORE, 1)
                    renewal = Renewal.RENEWED if is_back else Renewal.REFUSED
            except NoMajority:
                continue
            if renewal is Renewal.RENEWED:
                holding.extend(max(holding.deadline, self.deadline(asked_at)))
        if chance.random() >= self.world.trouble.death:
            holding.end()
            yield from self.give_back(holding)

    def give_back(self, holding: Holding | None) -> Generator[Any, Any, None]:
        chance = self.world.chance
        if holding is not None and self.ask.position is None and chance.random() < 0.4:
            self.ask.position = chance.randrange(3)
        self.ask.is_held = holding is not None and self.now() < holding.deadline
        for _ in range(3):
            try:
                if not self.ask.is_held and self.ask.position is not None:
                    [is_last] = yield from self.world.quorum.are_last(1)
                    if not is_last:
                        return
                [is_written] = yield from self.world.quorum.vote(Step.RELEASE, 1)
            except NoMajority:
                continue
            if is_written and holding is not None and self.ask.position is not None:
                self.world.history.recorded(self.ask.position, self.world.time)
            return


class Holding:
    """What one client believes that it holds; in the world's time."""

    __slots__ = ("_client", "began", "deadline", "ended", "fence", "since")

    def __init__(self, client: Client, fence: int, began: int, deadline: float) -> None:
        self._client, self.fence, self.began, self.deadline = client, fence, began, deadline
        self.since = client.world.time
        self.ended = 0.0

    @property
    def until(self) -> float:
        return self.ended or self.deadline / self._client.rate

    def extend(self, deadline: float) -> None:
        self.deadline = deadline
        self._client.world.history.check_alone(self)

    def end(self) -> None:
        self.ended = min(float(self._client.world.time), self.until)


class History:
    """What was granted and recorded, and what may not be."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.holdings: list[Holding] = []
        self._recorded: list[tuple[int, int]] = []

    def granted(self, client: Client, fence: int, began: int, deadline: float) -> Holding:
        mine = Holding(client, fence, began, deadline)
        for other in self.holdings:
            if other.fence >= fence:
                raise Violation(self._seed, f"fence {fence} after {other.fence}")
        asked = client.ask.position
        for position, at in self._recorded:
            if at < began and asked is not None and asked <= position:
                raise Violation(self._seed, f"{asked} was granted, and {position} is done")
        self.holdings.append(mine)
        self.check_alone(mine)
        return mine

    def check_alone(self, mine: Holding) -> None:
        for other in self.holdings:
            if other is not mine and other.since < mine.until and mine.since < other.until:
                raise Violation(self._seed, f"two inside: fences {other.fence} and {mine.fence}")

    def recorded(self, position: int, at: int) -> None:
        self._recorded.append((position, at))


def first_violation(
    world: Callable[[int], World], seeds: Mapping[int, None] | range
) -> Violation | None:
    for seed in seeds:
        try:
            world(seed).run()
        except Violation as violation:
            return violation
    return None
