"""What is due is claimed, published and recorded; what others do is left to them."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from celery_singleton_lock.core.clock import Clock
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Done, Granted, Held, RecordState, Release
from celery_singleton_lock.leases import LeaseStore

from .agenda import Agenda
from .entries import Due, NotTaken, OnMissed, PlannedEntry, Publishes
from .membership import Company
from .plan import Plan, as_position, as_slot, delay_of, plan, slots_between
from .positions import POSITION_KEPT_FOR, Positions, recording

logger = logging.getLogger(__name__)

RANK_DELAY: Final = timedelta(milliseconds=100)


@dataclass(frozen=True, slots=True)
class _Look:
    """An entry whose slot is due, and whose turn it is for this replica to look."""

    entry: PlannedEntry
    slot: datetime
    is_first: bool


@dataclass(frozen=True, slots=True)
class _Claim:
    entry: PlannedEntry
    granted: Granted
    plan: Plan


class Dispatch:
    """Does what the agenda says, in chunks that are published well within the ttl of their leases."""

    def __init__(
        self,
        store: LeaseStore,
        publisher: Publishes,
        company: Company,
        agenda: Agenda,
        positions: Positions,
        *,
        slot_ttl: timedelta,
        on_missed: OnMissed,
        on_published: Callable[[PlannedEntry, Sequence[datetime]], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._company = company
        self._agenda = agenda
        self._positions = positions
        self._slot_ttl = slot_ttl
        self._on_missed = on_missed
        self._on_published = on_published
        self._clock = clock
        self._quiet_until = 0.0
        self._unrecorded: list[Release] = []
        self._chunk = 500
        self.ended: list[PlannedEntry] = []
        """Entries with a `last_page` that have no slot left."""

    def keep_quiet(self, span: timedelta) -> None:
        """Publish nothing for a while."""
        self._quiet_until = self._clock() + span.total_seconds()

    @property
    def _is_quiet(self) -> bool:
        return self._clock() < self._quiet_until

    def put(self, entry: PlannedEntry, *, not_before: datetime | None = None) -> None:
        """Look at `entry` when its next slot is due."""
        self._agenda.put(entry, not_before=not_before)
        self._notice_end(entry)

    def do_what_is_due(self) -> None:
        if self._is_quiet:
            return
        due = self._pop_due()
        while due:
            chunk, due = due[: self._chunk], due[self._chunk :]
            try:
                self._handle(chunk)
            except BaseException:
                # Whatever it is: these and the rest are still due.
                for look in (*chunk, *due):
                    self.put(look.entry, not_before=self._soon())
                raise
            if due:
                self._company.keep()

    def record(self) -> None:
        """Record what was published. Kept and tried again when the store is away: the last owner may
        record late."""
        if not self._unrecorded:
            return
        recordings, self._unrecorded = self._unrecorded, []
        try:
            self._store.release(recordings)
        except BaseException:
            self._unrecorded = recordings
            raise

    def _pop_due(self) -> list[_Look]:
        now = self._company.now()
        due = []
        for entry, slot, look_at in self._agenda.pop(now):
            place = self._company.place_for(entry.name)
            due_at = slot + delay_of(entry.key, entry.grid, slot, entry.jitter)
            turn = due_at + place * RANK_DELAY
            if turn > now:
                self._agenda.put_slot(entry, slot, not_before=max(turn, look_at))
            else:
                due.append(_Look(entry, slot, is_first=place == 0))
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
            [self._positions.request(look.entry, as_position(look.slot)) for look in looks]
        )
        claims = []
        for look, answer in zip(looks, answers, strict=True):
            match answer:
                case Done(position=position):
                    self._learn(look.entry, position)
                case Held(remaining=remaining):
                    self._wait_for_holder(look.entry, remaining)
                case Granted():
                    claims.append(self._claim(look.entry, answer, len(looks)))
        if self._is_quiet:
            # The store forgot, and so may have granted what was done before.
            self._let_go(claims)
            for claim in claims:
                self.put(claim.entry, not_before=self._soon())
        else:
            self._do(claims)

    def _learn(self, entry: PlannedEntry, position: int | None) -> None:
        published = []
        if position is not None:
            published = self._published_up_to(entry, as_slot(position))
            entry.position = as_slot(position)
        self.put(entry)
        self._on_published(entry, published)

    def _published_up_to(self, entry: PlannedEntry, slot: datetime) -> list[datetime]:
        """By others. Of what is older than late nobody here can tell whether it was passed over."""
        late = self._company.now() - entry.rule.late_line
        if entry.next_slot == slot:
            return [slot] if slot > late else []
        if entry.position is None or slot <= entry.position:
            return []
        return slots_between(entry.grid, max(entry.position, late), slot)[0]

    def _wait_for_holder(self, entry: PlannedEntry, remaining: timedelta) -> None:
        """It publishes; or it dies, and then the slot is ours to do."""
        soon = self._company.now() + max(remaining, RANK_DELAY)
        self.put(entry, not_before=soon)

    def _claim(self, entry: PlannedEntry, granted: Granted, among: int) -> _Claim:
        if entry.position is None:
            raise RuntimeError(f"entry {entry.name!r} was claimed before its position was read")
        now = self._company.now()
        # The slots of one chunk are those of all its entries: a long backfill goes bit by bit.
        at_most = max(1, self._chunk // among)
        is_due = partial(_is_due, entry, now) if entry.jitter else None
        return _Claim(
            entry, granted, plan(entry.grid, entry.position, now, entry.rule, is_due, at_most)
        )

    def _do(self, claims: Sequence[_Claim]) -> None:
        if not claims:
            return
        try:
            self._publish_all(claims)
        except NotTaken as refusal:
            open_ones = [claim for claim in claims if not refusal.dues.isdisjoint(_dues(claim))]
            self._let_go(open_ones)
            self._advance([claim for claim in claims if claim not in open_ones])
            raise
        except BaseException:
            self._let_go(claims)
            raise
        self._advance(claims)

    def _advance(self, claims: Sequence[_Claim]) -> None:
        """All slots of these claims are published, or passed over."""
        for claim in claims:
            for slot in claim.plan.missed:
                self._on_missed(Due(claim.entry.name, slot))
            claim.entry.position = claim.plan.position
            self._agenda.put_slot(claim.entry, claim.plan.next_slot)
            self._notice_end(claim.entry)
        self._unrecorded.extend(
            recording(claim.entry, claim.granted, as_position(claim.plan.position)) for claim in claims
        )
        for claim in claims:
            self._on_published(claim.entry, claim.plan.publish)
        self.record()

    def _publish_all(self, claims: Sequence[_Claim]) -> None:
        dues = [due for claim in claims for due in _dues(claim)]
        dues.sort(key=lambda due: (due.slot, due.entry))
        for claim in claims:
            # A replica that slept between claim and publish has no right any more.
            claim.granted.lease.ensure_held()
        began = self._clock()
        self._publisher.publish(dues)
        self._adapt(len(dues), self._clock() - began)

    def _adapt(self, published: int, took: float) -> None:
        # A chunk must be out within half the ttl of its leases, or a burst outlives them.
        if published >= self._chunk // 2 and took > 0:
            rate = published / took
            self._chunk = int(min(max(rate * self._slot_ttl.total_seconds() / 4, 10), 5000))

    def _let_go(self, claims: Sequence[_Claim]) -> None:
        try:
            self._store.release(
                [Release(claim.granted.lease, keep_for=POSITION_KEPT_FOR) for claim in claims]
            )
        except StoreUnavailable:
            logger.info("beat_leases_left_to_run_out count=%d", len(claims))

    def _notice_end(self, entry: PlannedEntry) -> None:
        if entry.last_page and entry.position is not None and entry.next_slot is None:
            self.ended.append(entry)

    def _soon(self) -> datetime:
        pause = random.uniform(0.3, 1.0)  # nosec B311 # noqa: S311 - jitter, not a secret
        return self._company.now() + timedelta(seconds=pause)


def _dues(claim: _Claim) -> list[Due]:
    entry, plan = claim.entry, claim.plan
    # A trigger is of its own time, whenever it is found.
    fill_gaps = len(plan.publish) if entry.fills_gaps else 0 if entry.is_job else plan.caught_up
    return [Due(entry.name, slot, number < fill_gaps) for number, slot in enumerate(plan.publish)]


def _is_due(entry: PlannedEntry, now: datetime, slot: datetime) -> bool:
    return slot + delay_of(entry.key, entry.grid, slot, entry.jitter) <= now
