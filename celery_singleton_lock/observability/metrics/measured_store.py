"""Measures what a lease store is asked, and how it answers."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import (
    Answer,
    Done,
    Granted,
    Lease,
    LeaseRequest,
    Page,
    Reading,
    Record,
    Release,
)
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.leases.base import Meeting
from celery_singleton_lock.observability.store_classes import put_before

from . import catalogue as all_
from .counts import Counts

Started = TypeVar("Started")

KINDS: Final = frozenset({"beat", "run", "task", "call", "lock", "reap"})
"""How the keys of leases begin; what begins otherwise is a user's own."""
OF_A_RUN: Final = ("run", "task")
"""How long these are waited for is told by the run: one process is refused, and another is granted."""
MOST_WAITING: Final = 10_000


class Measures:
    """Of one process, and of those that it forks."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._granted_at: WeakKeyDictionary[Lease, float] = WeakKeyDictionary()
        self._refused_at: OrderedDict[tuple[str, str], float] = OrderedDict()

    @contextmanager
    def timing(self, call: str, before: float = 0.0) -> Iterator[None]:
        """`before`: what it has taken already."""
        began = time.perf_counter() - before
        try:
            yield
        except StoreUnavailable:
            self._counts.add(all_.STORE_ERRORS, call)
            raise
        finally:
            self._counts.observe(all_.STORE_CALL, call, value=time.perf_counter() - began)

    def started(self, call: str, start: Callable[[], Started]) -> tuple[Started, float]:
        """What `start` returns, and what it took. Where the store waits then, that is all of it."""
        began = time.perf_counter()
        try:
            return start(), time.perf_counter() - began
        except StoreUnavailable:
            with self.timing(call, time.perf_counter() - began):
                raise

    def acquired(self, requests: Sequence[LeaseRequest], answers: Sequence[Answer]) -> None:
        now = time.perf_counter()
        results: Counter[tuple[str, str]] = Counter()
        for request, answer in zip(requests, answers, strict=True):
            kind = kind_of(request.key)
            match answer:
                case Granted(lease, takeovers, again):
                    results[kind, "again" if again else "granted"] += 1
                    self._granted_at[lease] = now
                    if takeovers and not again:
                        self._counts.add(all_.TAKEOVERS, kind)
                    self._end_wait(request, kind, now)
                case Done():
                    results[kind, "done"] += 1
                    self._refused_at.pop((request.key, request.owner), None)
                case _:
                    results[kind, "held"] += 1
                    self._begin_wait(request, now)
        for (kind, result), count in results.items():
            self._counts.add(all_.ACQUISITIONS, kind, result, by=count)

    def _begin_wait(self, request: LeaseRequest, now: float) -> None:
        if kind_of(request.key) in OF_A_RUN:
            return
        self._refused_at.setdefault((request.key, request.owner), now)
        if len(self._refused_at) > MOST_WAITING:
            # Most of them gave up, which nobody tells.
            self._refused_at.popitem(last=False)

    def _end_wait(self, request: LeaseRequest, kind: str, now: float) -> None:
        since = self._refused_at.pop((request.key, request.owner), None)
        if since is not None:
            self._counts.observe(all_.WAIT, kind, value=now - since)

    def renewed(self, leases: Sequence[Lease], kept: Sequence[bool]) -> None:
        for lease, is_kept in zip(leases, kept, strict=True):
            self._counts.add(all_.RENEWALS, kind_of(lease.key), "renewed" if is_kept else "lost")

    def released(self, releases: Sequence[Release]) -> None:
        now = time.perf_counter()
        for release in releases:
            granted_at = self._granted_at.pop(release.lease, None)
            if granted_at is not None and not release.undo:
                self._counts.observe(all_.HOLD, kind_of(release.lease.key), value=now - granted_at)

    def memory_lost(self) -> None:
        self._counts.add(all_.MEMORY_LOSSES)


class MeasuredStore(LeaseStore):
    """Stands before the class of a store: see `measured`."""

    _measures: Measures

    def acquire(self, requests: Sequence[LeaseRequest]) -> list[Answer]:
        if not requests:
            return []
        with self._measures.timing("acquire"):
            answers = super().acquire(requests)
        self._measures.acquired(requests, answers)
        return answers

    def start_acquire(self, requests: Sequence[LeaseRequest]) -> Callable[[], list[Answer]]:
        start = super().start_acquire
        answer, before = self._measures.started("acquire", lambda: start(requests))

        def wait() -> list[Answer]:
            with self._measures.timing("acquire", before):
                answers = answer()
            self._measures.acquired(requests, answers)
            return answers

        return wait

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        with self._measures.timing("renew"):
            kept = super().renew(leases)
        self._measures.renewed(leases, kept)
        return kept

    def release(self, releases: Sequence[Release]) -> list[bool]:
        if not releases:
            return []
        with self._measures.timing("release"):
            written = super().release(releases)
        self._measures.released(releases)
        return written

    def start_release(self, releases: Sequence[Release]) -> Callable[[], list[bool]]:
        start = super().start_release
        answer, before = self._measures.started("release", lambda: start(releases))

        def wait() -> list[bool]:
            with self._measures.timing("release", before):
                written = answer()
            self._measures.released(releases)
            return written

        return wait

    def meet(self, group: str, member: str, ttl: timedelta) -> Meeting:
        with self._measures.timing("meet"):
            return super().meet(group, member, ttl)

    def peek(self, keys: Sequence[str]) -> list[Record | None]:
        with self._measures.timing("peek"):
            return super().peek(keys)

    def expired(self, at_most: int = 100) -> list[Record]:
        with self._measures.timing("expired"):
            return super().expired(at_most)

    def write(self, book: str, pages: Sequence[Page]) -> list[Page]:
        if not pages:
            return []
        with self._measures.timing("write"):
            return super().write(book, pages)

    def read(self, book: str, after: int = 0) -> Reading:
        with self._measures.timing("read"):
            return super().read(book, after)


def measured(store: LeaseStore, measures: Measures) -> LeaseStore:
    """The same store, which is measured from now on."""
    if isinstance(store, MeasuredStore):
        return store
    put_before(store, MeasuredStore)
    store._measures = measures  # type: ignore[attr-defined]
    store.on_memory_loss(measures.memory_lost)
    return store


def kind_of(key: str) -> str:
    kind, colon, _ = key.partition(":")
    return kind if colon and kind in KINDS else "other"
