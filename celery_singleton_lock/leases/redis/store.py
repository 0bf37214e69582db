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
    Renewal,
    Verdict,
    Watch,
)
from celery_singleton_lock.leases.rules import microseconds

from . import scripts
from .links import Link, OnServer, ServerFacts
from .scripts import Command, Word
from .watch import ReleaseWatch

logger = logging.getLogger(__name__)

_EXPIRED_KEPT_MS: Final = microseconds(EXPIRED_KEPT_FOR) // 1000
_GLOB: Final = str.maketrans({char: f"\\{char}" for char in "*?[]\\^-"})
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
        self._prefix = f"{prefix}:"
        self._groups = f"{prefix}.group."
        self._servers: dict[int, ServerFacts] = {}
        self._warned_of_eviction = False
        self._link = open_link(self._met_server)

    @property
    def name(self) -> str:
        return self._name

    def close(self) -> None:
        self._link.close()

    # Calls

    def _acquire(self, requests: Sequence[LeaseRequest], call: str) -> list[Verdict]:
        rows = [
            (
                request.owner,
                microseconds(request.ttl),
                "" if request.position is None else request.position,
                request.heir or "",
                encode_note(request.note),
                "" if request.reclaim is None else request.reclaim,
                1 if request.waiting else 0,
            )
            for request in requests
        ]
        keys = self._keys([request.key for request in requests])
        command = Command(scripts.ACQUIRE, keys, rows, (_EXPIRED_KEPT_MS, call))
        return [_verdict(*answer) for answer in self._ask(command, 4)]

    def _renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        rows = [(lease.owner, lease.fence, microseconds(lease.ttl)) for lease in leases]
        keys = self._keys([lease.key for lease in leases])
        answers = self._ask(Command(scripts.RENEW, keys, rows, (_EXPIRED_KEPT_MS,)))
        return [_RENEWALS[said] for said in answers]

    def _restore(self, leases: Sequence[Lease]) -> list[bool]:
        rows = [
            (lease.owner, lease.fence, microseconds(lease.ttl), encode_note(lease.note))
            for lease in leases
        ]
        keys = self._keys([lease.key for lease in leases])
        answers = self._ask(Command(scripts.RESTORE, keys, rows, (_EXPIRED_KEPT_MS,)))
        return [said == 1 for said in answers]

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        rows = [_release_row(release) for release in releases]
        keys = self._keys([release.lease.key for release in releases])
        answers = self._ask(Command(scripts.RELEASE, keys, rows, (self._prefix,)))
        return [said == 1 for said in answers]

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        row = (encode_note({"forced_by": who, "reason": why}), self._prefix)
        [answer] = self._ask(Command(scripts.FORCE_RELEASE, self._keys([key]), [row]), 2)
        return _record(key, *answer)

    def _peek(self, keys: Sequence[str]) -> list[Record | None]:
        answers = self._ask(Command(scripts.PEEK, self._keys(keys), [()] * len(keys)), 2)
        return [_record(key, *answer) for key, answer in zip(keys, answers, strict=True)]

    def _scan(self, prefix: str) -> Iterator[Record]:
        pattern = f"{(self._prefix + prefix).translate(_GLOB)}*".encode()
        pages = self._link.scan(pattern)
        skipped = len(self._prefix.encode())
        while True:
            try:
                page = next(pages, None)
            except (RedisError, OSError) as error:
                raise self._unavailable(error) from error
            if page is None:
                return
            records = self._peek([name[skipped:].decode(errors="replace") for name in page])
            yield from (record for record in records if record)

    def _meet(self, group: str, member: str, ttl: timedelta) -> tuple[datetime, str, list[str]]:
        key = f"{self._groups}{group}".encode()
        row = (uuid.uuid4().hex, member, microseconds(ttl))
        [(now, mark, members)] = self._ask(Command(scripts.MEET, [key], [row]), 3)
        return rules.utc(now), mark, list(members)

    @contextmanager
    def watch(self, key: str) -> Iterator[Watch]:
        watch = ReleaseWatch(self._link, self._channel(key))
        try:
            yield watch
        finally:
            watch.close()

    # Ways and means

    def _keys(self, keys: Sequence[str]) -> list[bytes]:
        return [(self._prefix + key).encode() for key in keys]

    def _channel(self, key: str) -> str:
        return f"{self._prefix}released:{key}"

    def _ask(self, command: Command, width: int = 1) -> list[Any]:
        """What the script answered for each key: a value, or a tuple of `width` values."""
        try:
            parts = self._link.exchange(command)
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


def _release_row(release: Release) -> tuple[Word, ...]:
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
