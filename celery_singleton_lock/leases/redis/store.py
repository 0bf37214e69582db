"""Leases in Redis: one hash a key, one script a call, all calls of a batch in one pipeline."""

from __future__ import annotations

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
from .scripts import Command
from .watch import ReleaseWatch

logger = logging.getLogger(__name__)

_EXPIRED_KEPT_MS: Final = microseconds(EXPIRED_KEPT_FOR) // 1000
_GLOB: Final = str.maketrans({char: f"\\{char}" for char in "*?[]\\^-"})
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
        return [
            _verdict(reply)
            for reply in self._exchange(
                [
                    scripts.ACQUIRE.command(
                        self._key(request.key),
                        request.owner,
                        microseconds(request.ttl),
                        "" if request.position is None else request.position,
                        request.heir or "",
                        encode_note(request.note),
                        "" if request.reclaim is None else request.reclaim,
                        int(request.waiting),
                        _EXPIRED_KEPT_MS,
                        call,
                    )
                    for request in requests
                ]
            )
        ]

    def _renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        commands = [
            scripts.RENEW.command(
                self._key(lease.key),
                lease.owner,
                lease.fence,
                microseconds(lease.ttl),
                _EXPIRED_KEPT_MS,
            )
            for lease in leases
        ]
        return [_RENEWALS[reply] for reply in self._exchange(commands)]

    def _restore(self, leases: Sequence[Lease]) -> list[bool]:
        commands = [
            scripts.RESTORE.command(
                self._key(lease.key),
                lease.owner,
                lease.fence,
                microseconds(lease.ttl),
                encode_note(lease.note),
                _EXPIRED_KEPT_MS,
            )
            for lease in leases
        ]
        return [reply == 1 for reply in self._exchange(commands)]

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        commands = [self._release_command(release) for release in releases]
        return [reply == 1 for reply in self._exchange(commands)]

    def _release_command(self, release: Release) -> Command:
        lease, park = release.lease, release.park
        return scripts.RELEASE.command(
            self._key(lease.key),
            lease.owner,
            lease.fence,
            int(lease.is_held),
            "" if release.position is None else release.position,
            release.outcome or "",
            microseconds(release.keep_for) // 1000,
            microseconds(park.ttl) if park else "",
            (park.heir if park else None) or "",
            int(release.undo),
            self._channel(lease.key),
        )

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        note = encode_note({"forced_by": who, "reason": why})
        command = scripts.FORCE_RELEASE.command(self._key(key), note, self._channel(key))
        [reply] = self._exchange([command])
        return _record(key, reply) if reply else None

    def _peek(self, keys: Sequence[str]) -> list[Record | None]:
        commands = [scripts.PEEK.command(self._key(key)) for key in keys]
        replies = self._exchange(commands)
        return [_record(key, reply) for key, reply in zip(keys, replies, strict=True)]

    def _scan(self, prefix: str) -> Iterator[Record]:
        pattern = f"{(self._prefix + prefix).translate(_GLOB)}*".encode()
        pages = self._link.scan(pattern)
        skipped = len(self._prefix.encode())
        while True:
            with self._telling_trouble():
                page = next(pages, None)
            if page is None:
                return
            records = self._peek([name[skipped:].decode(errors="replace") for name in page])
            yield from (record for record in records if record)

    def _meet(self, group: str, member: str, ttl: timedelta) -> tuple[datetime, str, list[str]]:
        command = scripts.MEET.command(
            f"{self._groups}{group}".encode(), uuid.uuid4().hex, member, microseconds(ttl)
        )
        [(now, mark, members)] = self._exchange([command])
        return rules.utc(int(now)), mark.decode(), [name.decode() for name in members]

    @contextmanager
    def watch(self, key: str) -> Iterator[Watch]:
        watch = ReleaseWatch(self._link, self._channel(key))
        try:
            yield watch
        finally:
            watch.close()

    # Ways and means

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _channel(self, key: str) -> str:
        return f"{self._prefix}released:{key}"

    def _exchange(self, commands: Sequence[Command]) -> list[Any]:
        with self._telling_trouble():
            replies = self._link.exchange(commands)
            for reply in replies:
                if isinstance(reply, ResponseError):
                    # OOM, READONLY, LOADING, CLUSTERDOWN, NOPERM...: the server cannot serve us now.
                    raise reply
        return replies

    @contextmanager
    def _telling_trouble(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            raise StoreUnavailable(self.name, f"{type(error).__name__}: {error}") from error

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


def _verdict(reply: Sequence[Any]) -> Verdict:
    kind = reply[0]
    if kind == 1:
        return Grant(int(reply[1]), reply[2], reply[3] == 1)
    if kind == 0:
        return Held(reply[1].decode(), timedelta(microseconds=int(reply[2])))
    return Done(int(reply[1]), _text(reply[2]))


def _record(key: str, reply: Sequence[Any]) -> Record | None:
    now, pairs = reply
    if not pairs:
        return None
    fields = dict(zip(pairs[::2], pairs[1::2], strict=True))
    row = rules.Row(
        owner=_text(fields.get(b"owner")) or "",
        fence=int(fields.get(b"fence", 0)),
        until=int(fields.get(b"until", 0)),
        since=int(fields.get(b"since", 0)),
        position=int(fields[b"position"]) if b"position" in fields else None,
        outcome=_text(fields.get(b"outcome")),
        heir=_text(fields.get(b"heir")),
        parked_until=int(fields.get(b"parked_until", 0)),
        takeovers=int(fields.get(b"takeovers", 0)),
        note=_text(fields.get(b"note")) or "",
    )
    return rules.record(key, row, int(now))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")
