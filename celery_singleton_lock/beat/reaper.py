"""Runs whose worker died are published again, from the message in their record.

Once per expired grant: a lease of the reaper's own, with the fence of that grant as its position,
decides who does it, and remembers that it was done. Parked and waiting runs hold no lease, and so are
not dead.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from celery_singleton_lock.core.clock import Clock
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.facts import Listeners, RunName, RunPublishedAgain
from celery_singleton_lock.core.headers import read_slot
from celery_singleton_lock.core.models import Done, Granted, LeaseRequest, Record, Release
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.leases.base import EXPIRED_KEPT_FOR
from celery_singleton_lock.recovery.message_note import is_message

from .entries import Publishes
from .membership import Company

logger = logging.getLogger(__name__)

EVERY: Final = timedelta(seconds=1)
AT_ONCE: Final = 100


class Reaper:
    """`reap` looks every second, in the one replica that is first for it."""

    def __init__(
        self,
        store: LeaseStore,
        publisher: Publishes,
        company: Company,
        listeners: Listeners,
        *,
        slot_ttl: timedelta,
        lock_ttl: timedelta,
        clock: Clock,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._company = company
        self._listeners = listeners
        self._slot_ttl = slot_ttl
        self._lock_ttl = lock_ttl
        self._clock = clock
        self._next_look = 0.0

    def wait(self) -> None:
        """The store was away, and holders could not renew: give them the time to come back."""
        self._next_look = self._clock() + self._lock_ttl.total_seconds()

    def reap(self) -> None:
        """Publish again what ran out. Raises `BrokerUnavailable`, and then does it later."""
        if self._clock() < self._next_look or self._company.place_for("reaper") != 0:
            return
        while records := self._store.expired(AT_ONCE):
            done = self._publish_again(records)
            self._store.dismiss(done)
            if len(done) < AT_ONCE:
                break
        self._next_look = self._clock() + EVERY.total_seconds()

    def _publish_again(self, records: Sequence[Record]) -> list[Record]:
        """Returns those that nobody need look at any more."""
        answers = self._store.acquire([self._request(record) for record in records])
        mine = [
            (record, answer)
            for record, answer in zip(records, answers, strict=True)
            if isinstance(answer, Granted)
        ]
        try:
            self._publisher.publish_again(
                [record.note["message"] for record, _ in mine if _is_whole(record)]
            )
        except BaseException:
            self._let_go([answer for _, answer in mine])
            raise
        self._store.release(
            [
                Release(answer.lease, position=record.fence, keep_for=EXPIRED_KEPT_FOR)
                for record, answer in mine
            ]
        )
        for record, _ in mine:
            self._tell(record)
        done = [
            record for record, answer in zip(records, answers, strict=True) if isinstance(answer, Done)
        ]
        return [record for record, _ in mine] + done

    def _request(self, record: Record) -> LeaseRequest:
        name = self._company.name
        return LeaseRequest(
            f"reap:{record.key}", name, self._slot_ttl, position=record.fence, note={"beat": name}
        )

    def _tell(self, record: Record) -> None:
        is_whole = _is_whole(record)
        # What is not whole was too large to be noted: the broker delivers it again, in its own time.
        logger.warning(
            "%s key=%r holder=%r fence=%d",
            "run_published_again" if is_whole else "run_left_to_the_broker",
            record.key, record.owner, record.fence,
        )  # fmt: skip
        if self._listeners:
            self._listeners.tell(
                RunPublishedAgain(
                    at=self._company.now(),
                    run=_name_of(record),
                    fence=record.fence,
                    worker=str(record.note.get("worker") or ""),
                    is_whole=is_whole,
                )
            )

    def _let_go(self, grants: Sequence[Granted]) -> None:
        try:
            self._store.release([Release(granted.lease) for granted in grants])
        except StoreUnavailable:
            logger.info("reaper_leases_left_to_run_out count=%d", len(grants))


def _is_whole(record: Record) -> bool:
    return is_message(record.note.get("message"))


def _name_of(record: Record) -> RunName:
    note = record.note
    entry, slot = note.get("entry"), note.get("slot")
    return RunName(str(note.get("run") or ""), str(note.get("task") or ""), entry, read_slot(slot))
