"""One replica of beat: looks what is due, claims it, has it published, and records how far it is.

No Celery in here, and no clock but the store's. Every replica is active; the lease on an entry, with
the slot as its position, decides who publishes.
"""

from __future__ import annotations

import heapq
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from celery_singleton_lock.core.clock import Clock, boottime
from celery_singleton_lock.core.errors import LeaseLost, StoreUnavailable
from celery_singleton_lock.core.models import (
    Done,
    Granted,
    Held,
    Lease,
    LeaseRequest,
    RecordState,
    Release,
)
from celery_singleton_lock.leases import LeaseStore

from .entries import BrokerUnavailable, Due, OnMissed, PlannedEntry, Publishes
from .membership import rank
from .plan import Plan, as_position, as_slot, plan
from .store_clock import StoreClock

logger = logging.getLogger(__name__)

GROUP: Final = "beat"
HEARTBEAT: Final = timedelta(seconds=1)
RANK_DELAY: Final = timedelta(milliseconds=100)
POSITION_KEPT_FOR: Final = timedelta(days=400)
"""Longer than the year of a yearly entry."""
_READ_AT_ONCE: Final = 2000


@dataclass(frozen=True, slots=True)
class _Look:
    """An entry whose slot is due, and whose turn it is for this replica to look."""

    entry: PlannedEntry
    slot: datetime
    is_first: bool


@dataclass(slots=True)
class _Claim:
    entry: PlannedEntry
    lease: Lease
    plan: Plan


class Engine:
    """Call `tick` again and again, each time after the seconds that it returned."""

    def __init__(
        self,
        store: LeaseStore,
        publisher: Publishes,
        *,
        replica: str,
        slot_ttl: timedelta,
        on_missed: OnMissed,
        clock: Clock = boottime,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._replica = replica
        self._slot_ttl = slot_ttl
        self._on_missed = on_missed
        self._clock = clock
        self._store_clock = StoreClock(clock)
        self._members: tuple[str, ...] = ()
        self._next_heartbeat = 0.0
        self._entries: list[PlannedEntry] = []
        self._unread: list[PlannedEntry] = []
        self._heap: list[tuple[datetime, int, PlannedEntry]] = []
        self._tickets = 0
        self._unrecorded: list[Release] = []
        self._chunk = 500
        self._trouble: str | None = None
        self._broker_was_away = False
        self._quiet_until = 0.0
        store.on_memory_loss(self._put_back)

    def follow(self, entries: Iterable[PlannedEntry]) -> None:
        """Take these entries for the whole schedule, from the next tick on. No I/O."""
        self._entries = list(entries)
        self._unread = list(self._entries)
        self._heap = []

    @property
    def is_ready(self) -> bool:
        """Whether the last tick reached the store and the broker."""
        return self._trouble is None and self._store_clock.at is not None

    def tick(self) -> float:
        """Do all that is due now; return the seconds until something may be due again."""
        try:
            self._keep_company()
            self._read_positions()
            self._record_what_was_published()
            if self._broker_was_away:
                self._publisher.prepare()
                self._broker_was_away = False
            if not self._is_quiet:
                self._do_what_is_due()
        except StoreUnavailable as error:
            # Only a heartbeat can tell that it is back.
            self._next_heartbeat = 0.0
            self._say(f"the lease store is away: {error.reason}")
            return random.uniform(0.2, 0.5)  # noqa: S311 - jitter, not a secret
        except BrokerUnavailable as error:
            self._broker_was_away = True
            self._say(f"the broker is away: {error}")
            return random.uniform(0.2, 0.5)  # noqa: S311 - jitter, not a secret
        except LeaseLost as lost:
            # We slept between claim and publish. Somebody else did it, or we do it anew.
            logger.warning("beat_slept key=%r", lost.key)
            return 0.0
        self._say(None)
        return self._seconds_to_wait()

    def leave(self) -> None:
        """Say goodbye, so that the others take over at once. May be called twice."""
        try:
            self._record_what_was_published()
            self._store.meet(GROUP, self._replica, timedelta(0))
        except StoreUnavailable as error:
            logger.info("beat_left_silently reason=%s", error.reason)

    # Company and time

    def _keep_company(self) -> None:
        if self._clock() >= self._next_heartbeat:
            meeting = self._store.meet(GROUP, self._replica, 4 * HEARTBEAT)
            self._store_clock.hear(meeting.now)
            self._members = meeting.members
            self._next_heartbeat = self._clock() + HEARTBEAT.total_seconds()

    def _seconds_to_wait(self) -> float:
        until_heartbeat = self._next_heartbeat - self._clock()
        if not self._heap:
            return max(0.0, until_heartbeat)
        until_slot = (self._heap[0][0] - self._store_clock.now()).total_seconds()
        return max(0.0, min(until_heartbeat, until_slot))

    # How far the entries are

    def _read_positions(self) -> None:
        while self._unread:
            part = self._unread[:_READ_AT_ONCE]
            records = self._store.peek([entry.key for entry in part])
            new = []
            for entry, record in zip(part, records, strict=True):
                known = as_slot(record.position) if record and record.position is not None else None
                if known is None or (entry.position is not None and known < entry.position):
                    new.append(entry)
                else:
                    entry.position = known
            self._begin(new)
            for entry in part:
                self._schedule(entry)
            del self._unread[: len(part)]

    def _begin(self, entries: Sequence[PlannedEntry]) -> None:
        """Record positions that the store does not have.

        An entry that nobody ever saw begins now: no past is invented, and no later slot is lost. One
        that the store forgot is put back where we know it to be.
        """
        now = self._store_clock.now()
        for entry in entries:
            entry.position = entry.position or now
        positions = [as_position(entry.position) for entry in entries if entry.position]
        answers = self._store.acquire(list(map(self._request, entries, positions)))
        recordings = []
        for entry, position, answer in zip(entries, positions, answers, strict=True):
            if isinstance(answer, Done):
                entry.position = as_slot(answer.position)
            elif isinstance(answer, Granted):
                recordings.append(Release(answer.lease, position=position, keep_for=POSITION_KEPT_FOR))
        self._store.release(recordings)

    @property
    def _is_quiet(self) -> bool:
        return self._clock() < self._quiet_until

    def _put_back(self) -> None:
        """The store may have forgotten: tell it how far the entries are, and publish nothing until
        the others have had time to tell what they know."""
        self._unread = list(self._entries)
        self._quiet_until = self._clock() + HEARTBEAT.total_seconds()

    def _schedule(self, entry: PlannedEntry, *, not_before: datetime | None = None) -> None:
        if entry.position is None:
            return
        self._push(entry, entry.grid.next(entry.position), not_before=not_before)

    def _push(
        self, entry: PlannedEntry, next_slot: datetime | None, *, not_before: datetime | None = None
    ) -> None:
        entry.next_slot = next_slot
        if entry.next_slot is None:
            return
        look_at = max(entry.next_slot, not_before) if not_before else entry.next_slot
        self._tickets += 1
        entry.ticket = self._tickets
        heapq.heappush(self._heap, (look_at, entry.ticket, entry))

    # What is due

    def _do_what_is_due(self) -> None:
        due = self._pop_due()
        while due:
            chunk, due = due[: self._chunk], due[self._chunk :]
            try:
                self._handle(chunk)
            except BaseException:
                # Whatever it is: these and the rest are still due.
                for look in (*chunk, *due):
                    self._schedule(look.entry, not_before=self._soon())
                raise
            if due:
                self._keep_company()

    def _pop_due(self) -> list[_Look]:
        now = self._store_clock.now()
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, ticket, entry = heapq.heappop(self._heap)
            if ticket != entry.ticket or entry.next_slot is None:
                continue
            place = rank(self._replica, self._members, entry.name)
            turn = entry.next_slot + place * RANK_DELAY
            if turn > now:
                self._schedule(entry, not_before=turn)
            else:
                due.append(_Look(entry, entry.next_slot, is_first=place == 0))
        # Oldest first, over all entries.
        due.sort(key=lambda look: (look.slot, look.entry.name))
        return due

    def _handle(self, looks: Sequence[_Look]) -> None:
        """Claim what is ours to do first; look before claiming what was another's."""
        open_ones = [look for look in looks if look.is_first]
        others = [look for look in looks if not look.is_first]
        for look, record in zip(
            others, self._store.peek([look.entry.key for look in others]), strict=True
        ):
            if record is not None and (record.position or 0) >= as_position(look.slot):
                self._learn(look.entry, record.position)
            elif record is not None and record.state is RecordState.HELD:
                self._wait_for_holder(look.entry, record.remaining)
            else:
                open_ones.append(look)
        self._claim_and_do(open_ones)

    def _claim_and_do(self, looks: Sequence[_Look]) -> None:
        if not looks:
            return
        self._publisher.prepare()
        answers = self._store.acquire(
            [self._request(look.entry, as_position(look.slot)) for look in looks]
        )
        claims = []
        for look, answer in zip(looks, answers, strict=True):
            match answer:
                case Done(position=position):
                    self._learn(look.entry, position)
                case Held(remaining=remaining):
                    self._wait_for_holder(look.entry, remaining)
                case Granted(lease=lease):
                    claims.append(self._claim(look.entry, lease))
        if self._is_quiet:
            # The store forgot, and so may have granted what was done before.
            self._let_go(claims)
            for claim in claims:
                self._schedule(claim.entry, not_before=self._soon())
        else:
            self._do(claims)

    def _learn(self, entry: PlannedEntry, position: int | None) -> None:
        if position is not None:
            entry.position = as_slot(position)
        self._schedule(entry)

    def _wait_for_holder(self, entry: PlannedEntry, remaining: timedelta) -> None:
        """It publishes; or it dies, and then the slot is ours to do."""
        soon = self._store_clock.now() + max(remaining, RANK_DELAY)
        self._schedule(entry, not_before=soon)

    def _request(self, entry: PlannedEntry, position: int) -> LeaseRequest:
        return LeaseRequest(
            entry.key, self._replica, self._slot_ttl, position=position, note={"beat": self._replica}
        )

    def _claim(self, entry: PlannedEntry, lease: Lease) -> _Claim:
        position = entry.position
        if position is None:
            raise RuntimeError(f"entry {entry.name!r} was claimed before its position was read")
        return _Claim(entry, lease, plan(entry.grid, position, self._store_clock.now(), entry.rule))

    def _do(self, claims: Sequence[_Claim]) -> None:
        if not claims:
            return
        try:
            self._publish_all(claims)
        except BaseException:
            self._let_go(claims)
            raise
        for claim in claims:
            claim.entry.position = claim.plan.position
            self._push(claim.entry, claim.plan.next_slot)
        self._unrecorded.extend(_recording(claim) for claim in claims)
        self._record_what_was_published()

    def _publish_all(self, claims: Sequence[_Claim]) -> None:
        dues = [Due(claim.entry.name, slot) for claim in claims for slot in claim.plan.publish]
        dues.sort(key=lambda due: (due.slot, due.entry))
        for claim in claims:
            # A replica that slept between claim and publish has no right any more.
            claim.lease.ensure_held()
        began = self._clock()
        self._publisher.publish(dues)
        self._adapt(len(dues), self._clock() - began)
        for claim in claims:
            for slot in claim.plan.missed:
                self._on_missed(Due(claim.entry.name, slot))

    def _adapt(self, published: int, took: float) -> None:
        # A chunk must be out within half the ttl of its leases, or a burst outlives them.
        if published >= self._chunk // 2 and took > 0:
            rate = published / took
            self._chunk = int(min(max(rate * self._slot_ttl.total_seconds() / 4, 10), 5000))

    def _let_go(self, claims: Sequence[_Claim]) -> None:
        try:
            self._store.release([Release(claim.lease, keep_for=POSITION_KEPT_FOR) for claim in claims])
        except StoreUnavailable:
            logger.info("beat_leases_left_to_run_out count=%d", len(claims))

    def _record_what_was_published(self) -> None:
        """Kept and tried again when the store is away: the last owner may record late."""
        if not self._unrecorded:
            return
        recordings, self._unrecorded = self._unrecorded, []
        try:
            self._store.release(recordings)
        except BaseException:
            self._unrecorded = recordings
            raise

    def _soon(self) -> datetime:
        pause = random.uniform(0.3, 1.0)  # noqa: S311 - jitter, not a secret
        return self._store_clock.now() + timedelta(seconds=pause)

    def _say(self, trouble: str | None) -> None:
        """Log when a trouble begins and when it ends, once each."""
        if trouble is None and self._trouble is not None:
            logger.warning("beat_trouble_ended")
        elif trouble is not None and self._trouble is None:
            logger.warning("beat_trouble_began reason=%s", trouble)
        self._trouble = trouble


def _recording(claim: _Claim) -> Release:
    return Release(claim.lease, position=as_position(claim.plan.position), keep_for=POSITION_KEPT_FOR)
