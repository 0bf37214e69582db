"""What stores have in common that compute in Python: all they add is where the rows are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import TypeVar

from celery_singleton_lock.core.models import (
    Lease,
    LeaseRequest,
    Page,
    Reading,
    Record,
    RecordState,
    Release,
)

from . import books, rules
from .base import LISTED, LeaseStore, Renewal, Verdict

Item = TypeVar("Item")
Reply = TypeVar("Reply")


class RuledLeaseStore(LeaseStore):
    """Whoever can apply a rule to the rows under some keys, all at once, is a lease store."""

    @abstractmethod
    def _apply(self, rule: rules.Rule[Item, Reply], items: Sequence[tuple[str, Item]]) -> list[Reply]:
        """Apply `rule` to each (key, item), in order, alone with their rows; keep the rows that it
        returned, and answer what it replied. A row that has outlived `kept_until` is `BLANK`."""

    def _acquire(self, requests: Sequence[LeaseRequest], call: str) -> list[Verdict]:
        asked = [(request.key, rules.Asked(request, call)) for request in requests]
        return self._apply(rules.acquire, asked)

    def _renew(self, leases: Sequence[Lease]) -> list[Renewal]:
        return self._apply(rules.renew, [(lease.key, lease) for lease in leases])

    def _restore(self, leases: Sequence[Lease]) -> list[bool]:
        return self._apply(rules.restore, [(lease.key, lease) for lease in leases])

    def _release(self, releases: Sequence[Release]) -> list[bool]:
        return self._apply(rules.release, [(given.lease.key, given) for given in releases])

    def _force_release(self, key: str, who: str, why: str) -> Record | None:
        [taken] = self._apply(rules.force_release, [(key, rules.Force(key, who, why))])
        return taken

    def _peek(self, keys: Sequence[str]) -> list[Record | None]:
        return self._apply(rules.peek, [(key, key) for key in keys])

    def _meet(self, group: str, member: str, ttl: timedelta) -> rules.Met:
        attendance = rules.Attendance(member, ttl)
        [met] = self._apply(rules.meet, [(rules.group_key(group), attendance)])
        return met

    def _expired(self, at_most: int) -> list[Record]:
        found = [
            record
            for record in self._scan(LISTED)
            if record.state is RecordState.EXPIRED and record.is_listed
        ]
        found.sort(key=lambda record: (record.until, record.key))
        return found[:at_most]

    def _dismiss(self, grants: Sequence[tuple[str, int]]) -> list[bool]:
        dismissals = [(key, rules.Dismissal(fence)) for key, fence in grants]
        return self._apply(rules.dismiss, dismissals)

    def _write_pages(self, book: str, pages: Sequence[Page]) -> list[Page]:
        [settled] = self._apply(books.write, [(books.book_key(book), books.Writing(pages))])
        # After the book itself: who hears of it finds it changed.
        self._apply(rules.tell_group, [(rules.group_key(book), None)])
        return settled

    def _read_pages(self, book: str, after: int) -> Reading:
        [reading] = self._apply(books.read, [(books.book_key(book), books.Wanted(after))])
        return reading
