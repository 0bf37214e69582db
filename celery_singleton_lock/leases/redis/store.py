"""Leases in Redis: one hash a key, one script for many keys, all scripts of a batch in one pipeline."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, Final

from redis.exceptions import RedisError, ResponseError

from celery_singleton_lock.core.clock import Clock, boottime
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import (
    Done,
    Held,
    Lease,
    LeaseRequest,
    Page,
    Reading,
    Record,
    Release,
    encode_note,
)
from celery_singleton_lock.leases import rules
from celery_singleton_lock.leases.base import (
    DEFAULT_PREFIX,
    EXPIRED_KEPT_FOR,
    Grant,
    LeaseStore,
    Releases,
    Renewal,
    Verdict,
    Watch,
)
from celery_singleton_lock.leases.books import REMOVED_KEPT_FOR
from celery_singleton_lock.leases.rules import microseconds

from . import scripts
from .facts import ServerState, state_of
from .links import Link, OnServer, Part, ServerFacts
from .names import Names
from .scripts import Command, Word
from .watch import AllReleases, ReleaseWatch

logger = logging.getLogger(__name__)

_EXPIRED_KEPT_MS: Final = microseconds(EXPIRED_KEPT_FOR) // 1000
_REMOVED_KEPT: Final = microseconds(REMOVED_KEPT_FOR)
_JSON: Final = json.JSONDecoder()
_RENEWALS: Final = {1: Renewal.RENEWED, 2: Renewal.REFUSED, 3: Renewal.FORGOTTEN}


class RedisLeaseStore(LeaseStore):
    """`open_link` is given a function to tell of the servers it meets, and returns the way to them."""

    def __init__(
        self,
        name: str,
        open_link: Callable[[OnServer], Link],
        *,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock = boottime,
    ) -> None:
        super().__init__(clock=clock)
        self._name = name
        self._servers: dict[int, ServerFacts] = {}
        self._warned_of_eviction = False
        self._link = open_link(self._met_server)
        self._names = Names(prefix, self._link.lists)

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        self._link.close()

    def server_states(self) -> list[ServerState]:
        """What each master says of itself, for people. Raises `StoreUnavailable`."""
        try:
            return [state_of(client, self.name) for client in self._link.clients()]
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error

    # Calls

    def _acquire(self, requests: Sequence[LeaseRequest], call: str) -> list[Verdict]:
        return [_verdict(*answer) for answer in self._ask(self._to_acquire(requests, call), 4)]

    def _start_acquire(
        self, requests: Sequence[LeaseRequest], call: str
    ) -> Callable[[], list[Verdict]]:
        answers = self._start(self._to_acquire(requests, call), 4)
        return lambda: [_verdict(*answer) for answer in answers()]

    def _to_acquire(self, requests: Sequence[LeaseRequest], call: str) -> Command:
        rows = [
            (
                request.owner,
                microseconds(request.ttl),
                "" if request.position is None else request.position,
                request.heir or "",
                encode_note(request.note),
                "" if request.reclaim is None else request.reclaim,
                1 if request.waiting else 0,
                self._names.index_of(request.key),
            )
            for request in requests
        ]
        keys = self._names.of([request.key for request in requests])
        return Command(scripts.ACQUIRE, keys, rows, (_EXPIRED_KEPT_MS, call))

    def _renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        rows = [
            (lease.owner, lease.fence, microseconds(lease.ttl), self._names.index_of(lease.key))
            for lease in leases
        ]
        keys = self._names.of([lease.key for lease in leases])
        answers = self._ask(Command(scripts.RENEW, keys, rows, (_EXPIRED_KEPT_MS,)))
        return [_RENEWALS[said] for said in answers]

    def _restore(self, leases: Sequence[Lease]) -> list[bool]:
        rows = [
            (
                lease.owner,
                lease.fence,
                microseconds(lease.ttl),
                encode_note(lease.note),
                self._names.index_of(lease.key),
            )
            for lease in leases
        ]
        keys = self._names.of([lease.key for lease in leases])
        answers = self._ask(Command(scripts.RESTORE, keys, rows, (_EXPIRED_KEPT_MS,)))
        return [said == 1 for said in answers]

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        return [said == 1 for said in self._ask(self._to_release(releases))]

    def _start_release(self, releases: Sequence[Release]) -> Callable[[], list[bool]]:
        answers = self._start(self._to_release(releases))
        return lambda: [said == 1 for said in answers()]

    def _to_release(self, releases: Sequence[Release]) -> Command:
        rows = [
            (*release_row(release), self._names.index_of(release.lease.key)) for release in releases
        ]
        keys = self._names.of([release.lease.key for release in releases])
        return Command(scripts.RELEASE, keys, rows, (self._names.plain,))

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        note = encode_note({"forced_by": who, "reason": why})
        row = (note, self._names.index_of(key), self._names.plain)
        [answer] = self._ask(Command(scripts.FORCE_RELEASE, self._names.of([key]), [row]), 2)
        return _record(key, *answer)

    def _peek(self, keys: Sequence[str]) -> list[Record | None]:
        answers = self._ask(Command(scripts.PEEK, self._names.of(keys), [()] * len(keys)), 2)
        return [_record(key, *answer) for key, answer in zip(keys, answers, strict=True)]

    def _scan(self, prefix: str) -> Iterator[Record]:
        for pattern in self._names.patterns(prefix):
            pages = self._link.scan(pattern)
            while True:
                try:
                    page = next(pages, None)
                except (RedisError, OSError) as error:
                    raise self._unavailable(error) from error
                if page is None:
                    break
                names = [name.decode(errors="replace") for name in page]
                records = self._peek([self._names.key_of(name) for name in names])
                yield from (record for record in records if record)

    def _expired(self, at_most: int) -> list[Record]:
        indexes = self._names.indexes
        answers = self._ask(Command(scripts.EXPIRED, indexes, [(at_most,)] * len(indexes)), 2)
        found = [
            _record(self._names.key_of(name), now, fields)
            for now, listed in answers
            for name, fields in listed
        ]
        records = [record for record in found if record is not None]
        records.sort(key=lambda record: (record.until, record.key))
        return records[:at_most]

    def _dismiss(self, grants: Sequence[tuple[str, int]]) -> list[bool]:
        keys = self._names.of([key for key, _ in grants])
        rows = [(fence, self._names.index_of(key)) for key, fence in grants]
        return [said == 1 for said in self._ask(Command(scripts.DISMISS, keys, rows))]

    def _write_pages(self, book: str, pages: Sequence[Page]) -> list[Page]:
        rows = [(page.name, page.version, int(page.text is None), page.text or "") for page in pages]
        keys = [self._names.group(book)] * len(pages)
        answers = self._ask(Command(scripts.WRITE, keys, rows, (_REMOVED_KEPT,)), 2)
        return [
            Page(page.name, version, None if text is False else text)
            for page, (version, text) in zip(pages, answers, strict=True)
        ]

    def _read_pages(self, book: str, after: int) -> Reading:
        [(revision, told)] = self._ask(Command(scripts.READ, [self._names.group(book)], [(after,)]), 2)
        threes = zip(*[iter(told)] * 3, strict=True)
        pages = [Page(name, version, None if text is False else text) for name, version, text in threes]
        return Reading(revision, tuple(pages))

    def _meet(self, group: str, member: str, ttl: timedelta) -> tuple[datetime, str, list[str], int]:
        row = (uuid.uuid4().hex, member, microseconds(ttl))
        command = Command(scripts.MEET, [self._names.group(group)], [row])
        [(now, mark, members, revision)] = self._ask(command, 4)
        return rules.utc(now), mark, list(members), revision

    @contextmanager
    def watch(self, key: str) -> Iterator[Watch]:
        watch = ReleaseWatch(self._link, self._names.channel(key))
        try:
            yield watch
        finally:
            watch.close()

    @contextmanager
    def releases(self) -> Iterator[Releases]:
        try:
            releases = AllReleases(self._link, self._names)
            try:
                yield releases
            finally:
                releases.close()
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error

    # Ways and means

    def _ask(self, command: Command, width: int = 1) -> list[Any]:
        """What the script answered for each key: a value, or a tuple of `width` values."""
        return self._read(command, lambda: self._link.exchange(command), width)

    def _start(self, command: Command, width: int = 1) -> Callable[[], list[Any]]:
        """`_ask`, on its way."""
        try:
            receive = self._link.start(command)
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error
        return lambda: self._read(command, receive, width)

    def _read(self, command: Command, receive: Callable[[], list[Part]], width: int = 1) -> list[Any]:
        try:
            parts = receive()
        except (RedisError, OSError) as error:
            raise self._unavailable(error) from error
        for _, reply in parts:
            if isinstance(reply, ResponseError):
                # OOM, READONLY, LOADING, CLUSTERDOWN, NOPERM...: the server cannot serve us now.
                raise self._unavailable(reply) from reply
        if len(parts) == 1:
            return _answers(parts[0][1], width)
        answers: list[Any] = [None] * len(command.keys)
        for places, reply in parts:
            for at, answer in zip(places, _answers(reply, width), strict=True):
                answers[at] = answer
        return answers

    def _unavailable(self, error: Exception) -> StoreUnavailable:
        return StoreUnavailable(self.name, f"{type(error).__name__}: {error}")

    def _met_server(self, shard: int, server: ServerFacts) -> None:
        known = self._servers.get(shard)
        if server is known:
            return
        self._servers[shard] = server
        # A server that was restarted, or promoted, may have forgotten what the last one knew.
        if known is not None and known.run_id != server.run_id:
            self._notice_memory_loss()
        if server.may_evict and not self._warned_of_eviction:
            self._warned_of_eviction = True
            logger.warning(
                "store_may_evict store=%s: the server throws keys away when its memory is full, and "
                "leases with them; set maxmemory-policy to noeviction",
                self.name,
            )


def release_row(release: Release) -> tuple[Word, ...]:
    """What release.lua is told of a lease, before the index."""
    lease, park = release.lease, release.park
    return (
        lease.owner,
        lease.fence,
        1 if lease.is_held else 0,
        "" if release.position is None else release.position,
        release.outcome or "",
        microseconds(release.keep_for) // 1000,
        microseconds(park.ttl) if park else "",
        (park.heir if park else None) or "",
        1 if release.undo else 0,
    )


def _answers(reply: bytes, width: int) -> list[Any]:
    # Somebody else's record may hold what is no text.
    values, _ = _JSON.raw_decode(f"[{reply.decode(errors='replace')}]")
    return values if width == 1 else list(zip(*[iter(values)] * width, strict=True))


def _verdict(kind: int, number: int, detail: Any, again: int) -> Verdict:
    if kind == 1:
        return Grant(number, detail, again == 1)
    if kind == 0:
        return Held(detail, timedelta(microseconds=number))
    return Done(number, detail or None)


def _record(key: str, now: int, fields: Sequence[Any]) -> Record | None:
    """`fields`: as batch.lua lists them; what is not recorded is false."""
    if not any(fields):
        return None
    owner, fence, until, since, position, outcome, heir, parked_until, takeovers, note = fields
    row = rules.Row(
        owner=owner or "",
        fence=int(fence),
        until=int(until),
        since=int(since),
        position=int(position) if position else None,
        outcome=outcome or None,
        heir=heir or None,
        parked_until=int(parked_until),
        takeovers=int(takeovers),
        note=note or "",
    )
    return rules.record(key, row, now)
