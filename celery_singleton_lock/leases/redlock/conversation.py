"""The protocols of `quorum`, carried to the nodes by `exchange`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from celery_singleton_lock.leases.redis.scripts import Command, Script, Word, chunks

from .assembly import Assembly
from .channel import Reply
from .exchange import TOKEN, Exchange, Parcel
from .nodes import Nodes
from .quorum import Quorum
from .repair import read_values
from .rounds import Heard, NoMajority, Pause, Result, Round, Step, Talk
from .votes import TAKEN, VOTE_WIDTH

Compose = Callable[[Round, Sequence[int]], Command]
"""The command of a round, for the items at these places."""


class Conversation:
    """`key`: where a node keeps its incarnation."""

    def __init__(self, nodes: Nodes, assembly: Assembly, key: bytes) -> None:
        self._nodes = nodes
        self._assembly = assembly
        self._guard: tuple[Word, ...] = (key, TOKEN)
        self._ahead = 0
        self.quorum = Quorum(nodes.size.nodes, guess=self._guess)

    def command(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...] = (),
    ) -> Command:
        """One that a node runs only in the incarnation in which it is asked."""
        return Command(script, keys, rows, shared + self._guard)

    def vote(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...] = (),
    ) -> list[bool]:
        """Whether a majority did it, for each key."""
        compose = self._composing(script, keys, rows, shared)
        return self.hold(self.quorum.vote(Step.ASK, len(keys)), compose)

    def answers(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...] = (),
        *,
        width: int,
    ) -> list[Sequence[Any]]:
        """What each node answered, if they are a majority, for each key: `width` values."""
        compose = self._composing(script, keys, rows, shared)
        return self.hold(self.quorum.hear(len(keys)), compose, width)

    def _composing(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...],
    ) -> Compose:
        def compose(_: Round, places: Sequence[int]) -> Command:
            if len(places) == len(keys):
                return self.command(script, keys, rows, shared)
            some = [keys[at] for at in places]
            return self.command(script, some, [rows[at] for at in places], shared)

        return compose

    def hold(self, talk: Talk[Result], compose: Compose, width: int = 1) -> Result:
        """The verdict of a protocol, in which nodes answer `width` values for each item. Raises
        `StoreUnavailable` if there is no majority."""
        self._assembly.look_around()
        heard: Mapping[int, Heard] | None = None
        try:
            while True:
                wish = talk.send(heard)  # type: ignore[arg-type]
                if isinstance(wish, Pause):
                    time.sleep(wish.seconds)
                    heard = {}
                else:
                    heard = self._ask(wish, compose, width)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        except NoMajority:
            raise self._assembly.unavailable() from None
        finally:
            self._assembly.look_back()

    def _ask(self, wish: Round, compose: Compose, width: int) -> dict[int, Heard]:
        parcels: dict[int, Parcel] = {}
        last: Sequence[int] | None = None
        parcel: Parcel | None = None
        for number, places in wish.shares.items():
            # Most often all nodes have the same share.
            if parcel is None or (places is not last and places != last):
                parcel, last = _parcel(wish, places, compose), places
            parcels[number] = parcel
        is_proposal = wish.step is Step.PROPOSE
        read = partial(_read, VOTE_WIDTH if is_proposal else width)
        exchange = Exchange(self._nodes, parcels, read, wish.under)
        if not wish.waits:
            exchange.post()
            return {}
        heard = exchange.ask()
        if is_proposal:
            self._learn_to_guess(wish.guess, heard)
        return heard

    def _guess(self) -> int:
        return time.time_ns() // 1000 + self._ahead

    def _learn_to_guess(self, guess: int, heard: Mapping[int, Heard]) -> None:
        """A node that took no guess tells what it is beyond, or what time it is."""
        told = {id(said.replies): said.replies for said in heard.values() if said.replies is not None}
        bases = [vote[1] for votes in told.values() for vote in votes if vote[0] == TAKEN]
        if bases:
            self._ahead += max(bases) + 1 - guess


def _parcel(wish: Round, places: Sequence[int], compose: Compose) -> Parcel:
    return Parcel([compose(wish, some) for some in chunks(places)], is_answered=wish.waits)


def _read(width: int, replies: Sequence[Reply]) -> list[Any]:
    values = read_values(replies)
    return values if width == 1 else list(zip(*[iter(values)] * width, strict=True))
