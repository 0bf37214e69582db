"""Slots whose run nobody has started are published again, under the same id.

A broker may lose a message that it has confirmed: Redis does when a worker dies in the moment in which
it is handed one, and whatever was not yet on its disk when it is killed. A run that was started has a
record, so that one can tell. A message that only waits its turn in a long queue cannot be told from one
that is lost; its copy does no harm, and comes after twice the time each time.

That nobody has started it is only known while it would be remembered: `_Awaited.since` is a time before
which it cannot have been started, so nothing is told by a record that is missing `remember_for` later.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from celery_singleton_lock.core.clock import Clock
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.facts import Listeners, RunName, SlotPublishedAgain
from celery_singleton_lock.core.models import Done, Granted, Lease, LeaseRequest, Release
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.worker.run import run_key

from .entries import Due, NotTaken, PlannedEntry, Publishes
from .membership import Company
from .plan import run_id
from .start_terms import StartTerms

logger = logging.getLogger(__name__)

AT_ONCE: Final = 500
RANK_DELAY: Final = timedelta(seconds=2)
BUDGET_S: Final = 0.5
"""Of one tick: what is due for the first time goes first."""
NEXT_TRY: Final = timedelta(seconds=10)
"""After the broker did not take it."""
MOST_AWAITED: Final = 200_000
"""Some 60 MB."""


@dataclass(order=True, slots=True)
class _Awaited:
    """A slot that was published, and whose run should have been started by `look_at`."""

    look_at: datetime
    slot: datetime
    name: str
    key: str = field(compare=False)
    """Of its entry, or of its job."""
    terms: StartTerms = field(compare=False)
    since: datetime = field(compare=False)
    tries: int = field(compare=False, default=0)

    @property
    def may_start_until(self) -> datetime | None:
        return self.terms.end_of(self.slot)

    @property
    def due(self) -> Due:
        return Due(self.name, self.slot, in_turn=True, again=True, expires=self.may_start_until)


class Unstarted:
    """Every replica knows what was published while it lived, and looks in its turn; a lease, with the
    number of the try as its position, decides who publishes again."""

    def __init__(
        self,
        store: LeaseStore,
        publisher: Publishes,
        company: Company,
        listeners: Listeners,
        *,
        app_name: str,
        find: Callable[[str], PlannedEntry | None],
        terms_of: Callable[[str], StartTerms | None],
        slot_ttl: timedelta,
        within: timedelta | None,
        remember_for: timedelta,
        clock: Clock,
    ) -> None:
        """`find` knows the entry or job behind a key, and `terms_of` an entry by its name; None:
        nothing can be told of its runs. `within` None: nothing is published again. A run that ended is
        remembered for `remember_for`, so nothing can be told of older ones."""
        self._store = store
        self._publisher = publisher
        self._company = company
        self._listeners = listeners
        self._app_name = app_name
        self._find = find
        self._terms_of = terms_of
        self._slot_ttl = slot_ttl
        self._within = within
        self._remember_for = remember_for
        self._clock = clock
        self._awaited: list[_Awaited] = []
        self._refused: set[tuple[str, datetime]] = set()
        self._quiet_until = 0.0
        self._forgotten = 0
        self._is_full = False

    def expect(self, entry: PlannedEntry, slots: Sequence[datetime]) -> None:
        """These were published just now, by whomever. `entry.next_slot` comes after them."""
        if self._within is None or not slots:
            return
        slots = [slot for slot in slots if not self._was_refused(entry.name, slot)]
        terms = self._terms_of(entry.name)
        if terms is None:
            return
        now, late_line = self._company.now(), entry.rule.late_line
        patience = self._within + self._company.place_for(entry.name) * RANK_DELAY
        look_at = now + terms.delay + patience
        for slot in self._that_may_be_wanted(entry, slots, look_at):
            if self._has_room():
                # Another may have published it a while ago, but not before it was due.
                since = max(slot, now - late_line) + terms.delay
                awaited = _Awaited(look_at, slot, entry.name, entry.key, terms, since)
                heapq.heappush(self._awaited, awaited)

    def _that_may_be_wanted(
        self, entry: PlannedEntry, slots: Sequence[datetime], look_at: datetime
    ) -> Sequence[datetime]:
        """Not what is over by then, as with short intervals nearly all is."""
        rule, coming = entry.rule, entry.next_slot
        if rule.policy == "all":
            return slots
        fresh = [slot for slot in slots if look_at - slot <= rule.late_line]
        if fresh or rule.policy == "none" or (coming is not None and coming < look_at):
            return fresh
        return slots[-1:]

    def _has_room(self) -> bool:
        was_full, self._is_full = self._is_full, len(self._awaited) >= MOST_AWAITED
        if self._is_full and not was_full:
            logger.warning("slots_not_looked_after more_than=%d", MOST_AWAITED)
        return not self._is_full

    def refuse(self, due: Due) -> None:
        """It can never be published, and was told of as missed."""
        if self._within is not None:
            self._refused.add((due.entry, due.slot))

    def _was_refused(self, entry: str, slot: datetime) -> bool:
        was_refused = (entry, slot) in self._refused
        self._refused.discard((entry, slot))
        return was_refused

    def forget(self) -> None:
        """The store has lost its memory, and so the records by which one could tell."""
        self._awaited.clear()
        self._forgotten += 1

    def wait(self) -> None:
        """The store was away, and nobody could start: give them the time to."""
        if self._within is not None:
            self._quiet_until = self._clock() + self._within.total_seconds()

    def publish_again(self) -> None:
        """Publish what should have been started by now and was not. Raises `BrokerUnavailable`, and
        then does it later."""
        began = self._clock()
        if began < self._quiet_until:
            return
        while self._is_due() and self._clock() - began <= BUDGET_S:
            batch = self._pop()
            try:
                self._judge(batch)
            except BaseException:
                self._put_off(batch)
                raise

    def _is_due(self) -> bool:
        return bool(self._awaited) and self._awaited[0].look_at <= self._company.now()

    def _pop(self) -> list[_Awaited]:
        now = self._company.now()
        batch: list[_Awaited] = []
        while self._awaited and self._awaited[0].look_at <= now and len(batch) < AT_ONCE:
            awaited = heapq.heappop(self._awaited)
            if self._is_wanted(awaited, now):
                batch.append(awaited)
        return batch

    def _put_off(self, batch: Sequence[_Awaited]) -> None:
        """Whatever became of it: some of it may have been published."""
        for awaited in batch:
            awaited.look_at = self._company.now() + NEXT_TRY
            heapq.heappush(self._awaited, awaited)

    def _is_wanted(self, awaited: _Awaited, now: datetime) -> bool:
        """As for a slot that was never published: what is late is always wanted, and what is older as
        the catch-up rule says."""
        entry, slot = self._find(awaited.key), awaited.slot
        if entry is None or not entry.is_active or (entry.begins is not None and slot <= entry.begins):
            return False
        if awaited.may_start_until is not None and now >= awaited.may_start_until:
            return False
        age, rule = now - slot, entry.rule
        if age <= rule.late_line:
            return True
        is_latest = entry.position is None or entry.position <= slot
        return age <= rule.window and (rule.policy == "all" or (rule.policy == "latest" and is_latest))

    def _judge(self, batch: Sequence[_Awaited]) -> None:
        memory = self._forgotten
        runs = [run_id(self._app_name, awaited.name, awaited.slot) for awaited in batch]
        records = self._store.peek([run_key(run) for run in runs])
        # Afterwards: we may have slept before we asked.
        remembered_since = self._company.now() - self._remember_for
        unstarted = [
            (awaited, run)
            for awaited, run, record in zip(batch, runs, records, strict=True)
            if record is None and awaited.since > remembered_since
        ]
        if unstarted and self._forgotten == memory:
            self._claim_and_publish(unstarted)

    def _claim_and_publish(self, unstarted: Sequence[tuple[_Awaited, str]]) -> None:
        answers = self._store.acquire([self._request(awaited, run) for awaited, run in unstarted])
        mine = {
            awaited.due: answer.lease
            for (awaited, _), answer in zip(unstarted, answers, strict=True)
            if isinstance(answer, Granted)
        }
        not_taken: frozenset[Due] = frozenset()
        try:
            self._publisher.publish_anew(list(mine))
        except NotTaken as refusal:
            not_taken = refusal.dues
        except BaseException:
            self._let_go(mine.values())
            raise
        self._let_go([lease for due, lease in mine.items() if due in not_taken])
        keep_for = self._remember_for
        self._store.release(
            [
                Release(lease, position=awaited.tries + 1, keep_for=keep_for)
                for awaited, _ in unstarted
                if (lease := mine.get(awaited.due)) is not None and awaited.due not in not_taken
            ]
        )
        for (awaited, run), answer in zip(unstarted, answers, strict=True):
            if awaited.due in not_taken:
                self._put_off([awaited])  # its queue is full: nothing is lost there
            elif not self._was_refused(awaited.name, awaited.slot):
                if isinstance(answer, Granted):
                    self._tell(awaited, run)
                self._look_again(awaited, is_settled=isinstance(answer, Granted | Done))

    def _request(self, awaited: _Awaited, run: str) -> LeaseRequest:
        name = self._company.name
        return LeaseRequest(
            f"again:{run_key(run)}",
            name,
            self._slot_ttl,
            position=awaited.tries + 1,
            note={"beat": name},
        )

    def _look_again(self, awaited: _Awaited, *, is_settled: bool) -> None:
        now = self._company.now()
        if not is_settled:
            # Another replica is at it; or it dies, and then it is ours to do.
            awaited.look_at = now + self._slot_ttl
        else:
            awaited.tries += 1
            awaited.look_at = max(awaited.look_at, now) + self._patience * 2**awaited.tries
        # Later it could be started, finished and forgotten.
        if awaited.look_at - awaited.since < self._remember_for:
            heapq.heappush(self._awaited, awaited)

    @property
    def _patience(self) -> timedelta:
        return self._within or timedelta(0)

    def _tell(self, awaited: _Awaited, run: str) -> None:
        logger.warning(
            "slot_published_again entry=%r slot=%s run=%s not_started_for=%s",
            awaited.name, awaited.slot.isoformat(), run, self._company.now() - awaited.since,
        )  # fmt: skip
        if self._listeners:
            name = RunName(run, awaited.terms.task, awaited.name, awaited.slot)
            self._listeners.tell(
                SlotPublishedAgain(at=self._company.now(), run=name, replica=self._company.name)
            )

    def _let_go(self, leases: Collection[Lease]) -> None:
        try:
            self._store.release([Release(lease) for lease in leases])
        except StoreUnavailable:
            logger.info("start_leases_left_to_run_out count=%d", len(leases))
