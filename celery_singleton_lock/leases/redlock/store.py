"""Leases over several independent servers, held by who has a majority of them."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from statistics import median_low
from typing import Final

from redis.exceptions import RedisError

from celery_singleton_lock.core.clock import Clock, boottime
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
from celery_singleton_lock.leases.redis.names import Names
from celery_singleton_lock.leases.redis.scripts import MOST_KEYS, Command, Word
from celery_singleton_lock.leases.redis.store import release_row
from celery_singleton_lock.leases.rules import microseconds

from . import scripts
from .assembly import Assembly
from .books import Books
from .conversation import Compose, Conversation
from .facts import NodeFacts, facts_of_all
from .incarnation import quorum_key
from .node import Node
from .nodes import Nodes
from .records import Known, record_of
from .repair import CannotBeAsked, Infirmary, scan_channel
from .rounds import Round, Step

logger = logging.getLogger(__name__)

_EXPIRED_KEPT_MS: Final = b"%d" % (microseconds(EXPIRED_KEPT_FOR) // 1000)


class RedlockLeaseStore(LeaseStore):
    """Held by who has a majority of the nodes. See docs/redlock.md.

    `timeout`: a node that takes longer to answer is done without, and left alone for a while.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        *,
        prefix: str = DEFAULT_PREFIX,
        timeout: timedelta,
        clock: Clock = boottime,
    ) -> None:
        super().__init__(clock=clock)
        self._nodes = Nodes(nodes, timeout.total_seconds())
        self._names = Names(prefix, 1)
        key = quorum_key(prefix)
        self._infirmary = Infirmary(self._nodes, self._names, key)
        self._assembly = Assembly(self._nodes, self._infirmary, self._notice_memory_loss)
        self._talk = Conversation(self._nodes, self._assembly, key)
        self._books = Books(self._talk, self._names, self.name)
        # Who is in the second phase must not be overtaken; who died there must not be waited for.
        self._pending_for = b"%d" % (8 * microseconds(timeout))

    @property
    def name(self) -> str:
        return self._assembly.name

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
        self._assembly.notice_generation()
        return taken

    def node_facts(self) -> list[NodeFacts]:
        """What each node says of itself. `facts.remarks_on` says what is wrong with it."""
        return facts_of_all(self._nodes)

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
                shared = (call, wish.attempt, wish.guess, self._pending_for, _EXPIRED_KEPT_MS)
                return self._talk.command(scripts.PROPOSE, some, [rows[at] for at in places], shared)
            if wish.step is Step.CONFIRM:
                confirmed: list[tuple[Word, ...]] = [
                    (requests[at].owner, wish.fences[at], rows[at][1], indexes[at]) for at in places
                ]
                return self._talk.command(scripts.CONFIRM, some, confirmed, (call, wish.attempt))
            withdrawn: list[tuple[Word, ...]] = [
                (requests[at].owner, call, wish.attempt, indexes[at]) for at in places
            ]
            return self._talk.command(scripts.WITHDRAW, some, withdrawn)

        return self._talk.hold(self._talk.quorum.acquire(len(requests)), compose)

    def _renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        return self._talk.hold(self._talk.quorum.renew(len(leases)), self._composing(leases))

    def _restore(self, leases: Sequence[Lease]) -> list[bool]:
        return self._talk.hold(
            self._talk.quorum.vote(Step.RESTORE, len(leases)), self._composing(leases)
        )

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
            return self._talk.command(script, [keys[at] for at in places], rows, (_EXPIRED_KEPT_MS,))

        return compose

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        keys = self._names.of([release.lease.key for release in releases])
        rows = [
            (*release_row(release), self._names.index_of(release.lease.key)) for release in releases
        ]
        late = [
            at
            for at, release in enumerate(releases)
            if release.position is not None and not release.lease.is_held
        ]
        refused = self._overtaken([releases[at].lease for at in late]) if late else []
        written = {at: False for at, is_refused in zip(late, refused, strict=True) if is_refused}
        left = [at for at in range(len(releases)) if at not in written]
        if left:
            some, told = [keys[at] for at in left], [rows[at] for at in left]
            said = self._talk.vote(scripts.RELEASE, some, told, (self._names.plain,))
            written.update(zip(left, said, strict=True))
        return [written[at] for at in range(len(releases))]

    def _overtaken(self, leases: Sequence[Lease]) -> list[bool]:
        """Whether somebody was granted it since, of each of these late leases."""
        protocol = self._talk.quorum.are_last(len(leases))
        return [not is_last for is_last in self._talk.hold(protocol, self._composing(leases))]

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        [before] = self._peek([key])
        note = encode_note({"forced_by": who, "reason": why})
        row = (note, self._names.index_of(key), self._names.plain)
        self._talk.answers(scripts.FORCE_RELEASE, self._names.of([key]), [row], width=2)
        is_taken = before is not None and before.state is not RecordState.FREE
        return before if is_taken else None

    def _peek(self, keys: Sequence[str]) -> list[Record | None]:
        told = self._talk.answers(scripts.PEEK, self._names.of(keys), [()] * len(keys), width=3)
        return [
            record_of(self._nodes.size, key, [Known(*each) for each in known])
            for key, known in zip(keys, zip(*told, strict=True), strict=True)
        ]

    def _scan(self, prefix: str) -> Iterator[Record]:
        """From a majority of the nodes, one after the other; each record as all of them know it."""
        self._assembly.look_around()
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
        if heard < self._talk.quorum.size.majority:
            raise self._assembly.unavailable()
        keys = [self._names.key_of(name.decode(errors="replace")) for name in sorted(found)]
        for start in range(0, len(keys), MOST_KEYS):
            yield from (record for record in self._peek(keys[start : start + MOST_KEYS]) if record)

    def _expired(self, at_most: int) -> list[Record]:
        """What a node says ran out, if all together say so: one that missed a renewal is wrong."""
        told = self._talk.answers(scripts.EXPIRED, self._names.indexes, [(at_most,)], width=2)
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
        return self._talk.vote(scripts.DISMISS, keys, rows)

    # Groups and books

    def _meet(self, group: str, member: str, ttl: timedelta) -> tuple[datetime, str, list[str], int]:
        row = ("", member, microseconds(ttl))
        told = self._talk.answers(scripts.MEET, [self._names.group(group)], [row], width=4)
        times, _, members, revisions = zip(*[each for [each] in told], strict=True)
        # Who is seen by one is alive. A clock that is wrong is outvoted.
        alive = {name for some in members for name in some}
        # A loss of memory is noticed by the generation, see `Assembly`: the mark says nothing.
        return rules.utc(median_low(times)), "", sorted(alive), max(revisions)

    def _write_pages(self, book: str, pages: Sequence[Page]) -> list[Page]:
        return self._books.write(book, pages)

    def _read_pages(self, book: str, after: int) -> Reading:
        return self._books.read(book, after)
