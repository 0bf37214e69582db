"""Leases over several independent servers: the protocols of `quorum`, over the network of `nodes`."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median_low
from typing import Any, Final, TypeVar

from redis.exceptions import RedisError

from celery_singleton_lock.core.clock import Clock, boottime, drift_allowance
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import (
    Lease,
    LeaseRequest,
    Page,
    Reading,
    Record,
    RecordState,
    Release,
    check_name,
    encode_note,
)
from celery_singleton_lock.leases import rules
from celery_singleton_lock.leases.base import (
    DEFAULT_PREFIX,
    EXPIRED_KEPT_FOR,
    LeaseStore,
    Renewal,
    Verdict,
)
from celery_singleton_lock.leases.books import REMOVED_KEPT_FOR
from celery_singleton_lock.leases.redis.names import Names
from celery_singleton_lock.leases.redis.scripts import MOST_KEYS, Command, Script, Word, chunks
from celery_singleton_lock.leases.redis.store import release_row
from celery_singleton_lock.leases.rules import microseconds

from . import scripts
from .facts import NodeFacts, facts_of
from .nodes import TOKEN, Node, Nodes, Parcel
from .quorum import TAKEN, Heard, NoMajority, Pause, Quorum, Round, Step
from .records import Known, reading_of, record_of
from .repair import CannotBeAsked, Infirmary, read_values, scan_channel

logger = logging.getLogger(__name__)

_EXPIRED_KEPT_MS: Final = microseconds(EXPIRED_KEPT_FOR) // 1000
_REMOVED_KEPT: Final = microseconds(REMOVED_KEPT_FOR)
_NEWS_FOR: Final = microseconds(timedelta(milliseconds=100))
_GUESS_WITHIN: Final = microseconds(timedelta(seconds=1))
"""How far a guessed fence may be from a node's time. If all forget, fences begin anew from the time:
they grow all the same, as it takes longer than this until people have noticed."""

Result = TypeVar("Result")
Talk = Generator[Round | Pause, Mapping[int, Heard], Result]
Compose = Callable[[Round, Sequence[int]], Command]
"""The command of a round, for the items at these places."""


class RedlockLeaseStore(LeaseStore):
    """Held by who has a majority of the nodes. See docs/redlock.md.

    `timeout`: a node that takes longer to answer is done without, and left alone for a while.
    `drift`: seconds that clocks may drift apart within a ttl.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: timedelta,
        drift: Callable[[timedelta], float] = drift_allowance,
        clock: Clock = boottime,
    ) -> None:
        super().__init__(clock=clock)
        self._drift = drift
        self._nodes = Nodes(nodes, timeout.total_seconds())
        self._names = Names(prefix, 1)
        self._key = quorum_key(prefix)
        self._quorum = Quorum(len(nodes), guess=self._guess)
        self._ahead = 0
        self._infirmary = Infirmary(self._nodes, self._names, self._key)
        self._generation = ""
        # Who is in the second phase must not be overtaken; who died there must not be waited for.
        self._pending_for = 8 * microseconds(timeout)

    @property
    def name(self) -> str:
        return " ".join(node.name for node in self._nodes.all)

    def close(self) -> None:
        self._infirmary.close()
        self._nodes.close()

    def accept_memory_loss(self, *, who: str, why: str) -> list[str]:
        """Go on after a majority of the nodes lost its memory, with what is left of it and the nodes
        that answer; returns these. Only a person can know that nobody is at work any more who was
        granted what is forgotten. Raises `StoreUnavailable` if no majority answers."""
        check_name("name of who accepts it", who)
        check_name("reason", why, 2048)
        try:
            taken = self._infirmary.begin_anew()
        except (CannotBeAsked, OSError, RedisError) as error:
            raise StoreUnavailable(self.name, f"no majority of its nodes answers: {error}") from error
        logger.warning("quorum_began_anew nodes=%s who=%r why=%r", taken, who, why)
        self._notice_generation()
        return taken

    def node_facts(self) -> list[NodeFacts]:
        """What each node says of itself. `facts.remarks_on` says what is wrong with it."""
        channels = self._nodes.channels(range(len(self._nodes.all)), are_all_due=True)
        facts = []
        for node in self._nodes.all:
            channel = channels.get(node.number)
            try:
                facts.append(facts_of(node, channel, self._nodes.newest_generation))
            except (OSError, RedisError) as error:
                node.failed(str(error))
                facts.append(facts_of(node, None, ""))
                if channel is not None:
                    channel.close()
            else:
                if channel is not None:
                    node.idle.append(channel)
        self._nodes.expel_older()
        if self._nodes.has_some_out:
            self._infirmary.treat()
        return facts

    # Leases

    def _acquire(self, requests: Sequence[LeaseRequest], call: str) -> list[Verdict]:
        keys = self._names.of([request.key for request in requests])
        indexes = [self._names.index_of(request.key) for request in requests]
        rows: list[tuple[Word, ...]] = [
            (
                request.owner,
                microseconds(request.ttl),
                "" if request.position is None else request.position,
                request.heir or "",
                encode_note(request.note),
                "" if request.reclaim is None else request.reclaim,
                index,
            )
            for request, index in zip(requests, indexes, strict=True)
        ]

        def compose(wish: Round, places: Sequence[int]) -> Command:
            some = [keys[at] for at in places]
            if wish.step is Step.PROPOSE:
                shared = (
                    *(call, wish.attempt, wish.guess, _GUESS_WITHIN),
                    *(_NEWS_FOR, self._pending_for, _EXPIRED_KEPT_MS),
                )
                return self._command(scripts.PROPOSE, some, [rows[at] for at in places], shared)
            if wish.step is Step.CONFIRM:
                confirmed: list[tuple[Word, ...]] = [
                    (requests[at].owner, wish.fences[at], rows[at][1], indexes[at]) for at in places
                ]
                return self._command(scripts.CONFIRM, some, confirmed, (call, wish.attempt))
            withdrawn: list[tuple[Word, ...]] = [
                (requests[at].owner, call, wish.attempt, indexes[at]) for at in places
            ]
            return self._command(scripts.WITHDRAW, some, withdrawn)

        return self._talk(self._quorum.acquire(len(requests)), compose)

    def _renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        return self._talk(self._quorum.renew(len(leases)), self._composing(leases))

    def _restore(self, leases: Sequence[Lease]) -> list[bool]:
        return self._talk(self._quorum.vote(Step.RESTORE, len(leases)), self._composing(leases))

    def _composing(self, leases: Sequence[Lease]) -> Compose:
        keys = self._names.of([lease.key for lease in leases])

        def compose(wish: Round, places: Sequence[int]) -> Command:
            script = scripts.RENEW if wish.step is Step.RENEW else scripts.RESTORE
            rows: list[tuple[Word, ...]] = []
            for at in places:
                lease = leases[at]
                index = self._names.index_of(lease.key)
                note = () if wish.step is Step.RENEW else (encode_note(lease.note),)
                rows.append((lease.owner, lease.fence, microseconds(lease.ttl), *note, index))
            return self._command(script, [keys[at] for at in places], rows, (_EXPIRED_KEPT_MS,))

        return compose

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        keys = self._names.of([release.lease.key for release in releases])
        rows = [
            (*release_row(release), self._names.index_of(release.lease.key)) for release in releases
        ]
        late = [
            release.lease
            for release in releases
            if release.position is not None and not release.lease.is_held
        ]
        refused = self._overtaken(late) if late else []
        left = [at for at, release in enumerate(releases) if release.lease not in refused]
        if not left:
            return [False] * len(releases)
        some, told = [keys[at] for at in left], [rows[at] for at in left]
        written = self._vote(scripts.RELEASE, some, told, (self._names.plain,))
        said = dict(zip(left, written, strict=True))
        return [said.get(at, False) for at in range(len(releases))]

    def _overtaken(self, leases: Sequence[Lease]) -> list[Lease]:
        """Those of these late leases that somebody was granted since."""
        are_last = self._talk(self._quorum.are_last(len(leases)), self._composing(leases))
        return [lease for lease, is_last in zip(leases, are_last, strict=True) if not is_last]

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        [before] = self._peek([key])
        note = encode_note({"forced_by": who, "reason": why})
        row = (note, self._names.index_of(key), self._names.plain)
        self._answers(scripts.FORCE_RELEASE, self._names.of([key]), [row], width=2)
        is_taken = before is not None and before.state is not RecordState.FREE
        return before if is_taken else None

    def _peek(self, keys: Sequence[str]) -> list[Record | None]:
        told = self._answers(scripts.PEEK, self._names.of(keys), [()] * len(keys), width=3)
        return [
            record_of(key, [Known(*each) for each in known])
            for key, known in zip(keys, zip(*told, strict=True), strict=True)
        ]

    def _scan(self, prefix: str) -> Iterator[Record]:
        """From a majority of the nodes, one after the other; each record as all of them know it."""
        self._look_around()
        found: set[bytes] = set()
        heard = 0
        channels = self._nodes.channels([node.number for node in self._nodes.all if node.token])
        for number, channel in channels.items():
            try:
                for pattern in self._names.patterns(prefix):
                    for page in scan_channel(channel, pattern):
                        found.update(page)
            except (OSError, RedisError, CannotBeAsked) as error:
                channel.close()
                self._nodes.all[number].failed(str(error))
                continue
            self._nodes.all[number].idle.append(channel)
            heard += 1
        if heard < self._quorum.size.majority:
            raise self._unavailable()
        keys = [self._names.key_of(name.decode(errors="replace")) for name in sorted(found)]
        for start in range(0, len(keys), MOST_KEYS):
            yield from (record for record in self._peek(keys[start : start + MOST_KEYS]) if record)

    def _expired(self, at_most: int) -> list[Record]:
        """What a node says ran out, if all together say so: one that missed a renewal is wrong."""
        told = self._answers(scripts.EXPIRED, self._names.indexes, [(at_most,)], width=2)
        names = {name for [(_, listed)] in told for name, _ in listed}
        keys = [self._names.key_of(name) for name in sorted(names)]
        records = [
            record
            for record in (self._peek(keys) if keys else [])
            if record is not None and record.state is RecordState.EXPIRED
        ]
        records.sort(key=lambda record: (record.until, record.key))
        return records[:at_most]

    def _dismiss(self, grants: Sequence[tuple[str, int]]) -> list[bool]:
        keys = self._names.of([key for key, _ in grants])
        rows = [(fence, self._names.index_of(key)) for key, fence in grants]
        return self._vote(scripts.DISMISS, keys, rows)

    # Groups and books

    def _meet(self, group: str, member: str, ttl: timedelta) -> tuple[datetime, str, list[str], int]:
        row = ("", member, microseconds(ttl))
        told = self._answers(scripts.MEET, [self._names.group(group)], [row], width=4)
        times, _, members, revisions = zip(*[each for [each] in told], strict=True)
        # Who is seen by one is alive. A clock that is wrong is outvoted.
        alive = {name for some in members for name in some}
        # A loss of memory is noticed by the generation, see `_look_around`: the mark says nothing.
        return rules.utc(median_low(times)), "", sorted(alive), max(revisions)

    def _write_pages(self, book: str, pages: Sequence[Page]) -> list[Page]:
        """All nodes are given the same revisions, which are beyond all that a majority has."""
        keys = [self._names.group(book)] * len(pages)
        for _ in range(5):
            first = self._next_revision(book)
            rows = [
                (
                    page.name,
                    page.version or revision,
                    int(page.text is None),
                    page.text or "",
                    revision,
                )
                for revision, page in enumerate(pages, first)
            ]
            told = self._answers(scripts.WRITE, keys, rows, (_REMOVED_KEPT,), width=3)
            accepted = [sum(is_done for is_done, _, _ in each) for each in zip(*told, strict=True)]
            if min(accepted) >= self._quorum.size.majority:
                return [
                    _settled(page.name, each)
                    for page, each in zip(pages, zip(*told, strict=True), strict=True)
                ]
            # Another writer was quicker.
        raise StoreUnavailable(self.name, f"others keep writing into the book {book!r}")

    def _next_revision(self, book: str) -> int:
        look = ("", "", 0)
        told = self._answers(scripts.MEET, [self._names.group(book)], [look], width=4)
        highest: int = max(max(now, revision) for [(now, _, _, revision)] in told)
        # Two writers that look at the same moment should not choose the same.
        return highest + random.randrange(1, 1000)  # noqa: S311 - no secret

    def _read_pages(self, book: str, after: int) -> Reading:
        told = self._answers(scripts.READ, [self._names.group(book)], [(after,)], width=2)
        return reading_of(self._quorum.size, [each for [each] in told])

    # Ways and means

    def _command(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...] = (),
    ) -> Command:
        return Command(script, keys, rows, (*shared, self._key, TOKEN))

    def _vote(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...] = (),
    ) -> list[bool]:
        def compose(_: Round, places: Sequence[int]) -> Command:
            some = [keys[at] for at in places]
            return self._command(script, some, [rows[at] for at in places], shared)

        return self._talk(self._quorum.vote(Step.ASK, len(keys)), compose)

    def _answers(
        self,
        script: Script,
        keys: Sequence[bytes],
        rows: Sequence[tuple[Word, ...]],
        shared: tuple[Word, ...] = (),
        *,
        width: int,
    ) -> list[Sequence[Any]]:
        """What each node answered, if they are a majority, for each key: `width` values."""

        def compose(_: Round, places: Sequence[int]) -> Command:
            some = [keys[at] for at in places]
            return self._command(script, some, [rows[at] for at in places], shared)

        return self._talk(self._quorum.hear(len(keys)), compose, width)

    def _talk(self, talk: Talk[Result], compose: Compose, width: int = 1) -> Result:
        self._look_around()
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
            raise self._unavailable() from None
        finally:
            self._notice_generation()
            if self._nodes.has_some_out:
                self._infirmary.treat()

    def _ask(self, wish: Round, compose: Compose, width: int) -> dict[int, Heard]:
        parcels: dict[int, Parcel] = {}
        last: Sequence[int] | None = None
        parcel: Parcel | None = None
        for number, places in wish.shares.items():
            # Most often all nodes have the same share.
            if parcel is None or (places is not last and places != last):
                parcel, last = self._parcel(wish, places, compose), places
            parcels[number] = parcel
        heard = self._nodes.exchange(parcels, wish.under, waits=wish.waits)
        is_proposal = wish.step is Step.PROPOSE
        for number, said in heard.items():
            if said.replies is not None:
                told = _in_tuples(read_values(said.replies), 5 if is_proposal else width)
                heard[number] = Heard(said.incarnation, told)
        if is_proposal:
            self._learn_to_guess(wish.guess, heard)
        return heard

    def _guess(self) -> int:
        return time.time_ns() // 1000 + self._ahead

    def _learn_to_guess(self, guess: int, heard: Mapping[int, Heard]) -> None:
        """A node that took no guess tells what it is beyond, or what time it is."""
        bases = [
            base for said in heard.values() for kind, base, *_ in said.replies or () if kind == TAKEN
        ]
        if bases:
            self._ahead += max(bases) + 1 - guess

    def _parcel(self, wish: Round, places: Sequence[int], compose: Compose) -> Parcel:
        commands = [compose(wish, some) for some in chunks(places)]
        return Parcel(commands, is_answered=wish.waits)

    def _look_around(self) -> None:
        """See to it that a majority takes part; found the quorum if this is its first use."""
        if self._nodes.taking_part < self._quorum.size.majority:
            self._come_together()

    def _notice_generation(self) -> None:
        newest = self._nodes.newest_generation
        if newest > self._generation:
            if self._generation:
                self._notice_memory_loss()
            self._generation = newest

    def _come_together(self) -> None:
        """Wait until a majority takes part, but not for long: then the call fails and says why."""
        nodes, majority = self._nodes.all, self._quorum.size.majority
        give_up_at = time.monotonic() + 2 * self._nodes.timeout
        while True:
            asked = [node.number for node in nodes if node.token is None and not node.is_out]
            for number, channel in self._nodes.channels(asked).items():
                nodes[number].idle.append(channel)
            if self._nodes.taking_part >= majority:
                return
            # A process that has seen it work knows that this is no beginning.
            if (
                all(node.is_blank for node in nodes)
                and not self._generation
                and self._infirmary.found()
            ):
                return
            if self._nodes.has_some_out:
                self._infirmary.treat()
            if self._has_lost_majority or time.monotonic() > give_up_at:
                raise self._unavailable()
            time.sleep(0.02)

    @property
    def _has_lost_majority(self) -> bool:
        has_lost_all = bool(self._generation) and all(node.is_blank for node in self._nodes.all)
        return has_lost_all or self._infirmary.has_lost_majority

    def _unavailable(self) -> StoreUnavailable:
        if self._has_lost_majority:
            return StoreUnavailable(
                self.name,
                "a majority of its nodes lost its memory, and nobody knows what was granted. When "
                "nobody is at work any more, say so: store.accept_memory_loss(who=..., why=...)",
            )
        troubles = self._nodes.troubles or "too few answered in time"
        return StoreUnavailable(
            self.name, f"no majority of its {len(self._nodes.all)} nodes: {troubles}"
        )


def quorum_key(prefix: str) -> bytes:
    """Where a node keeps its incarnation."""
    return f"{prefix}.{{quorum}}".encode()


def _in_tuples(values: list[Any], width: int) -> list[Any]:
    return values if width == 1 else list(zip(*[iter(values)] * width, strict=True))


def _settled(name: str, told: Sequence[tuple[int, int, Any]]) -> Page:
    _, version, text = max(told, key=lambda each: each[1])
    return Page(name, version, None if text is False else text)
