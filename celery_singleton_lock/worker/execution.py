"""One try at a run: gets its leases, keeps them, and gives them back. No Celery in it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING

from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.errors import LeaseLost, StoreUnavailable
from celery_singleton_lock.core.models import (
    FINISHED,
    Answer,
    Granted,
    Lease,
    LeaseRequest,
    Park,
    Release,
)
from celery_singleton_lock.leases import LeaseStore

from .keep_alive import KeepAlive, OnLost
from .run import Ask, Keep, Leases, Poisoned, Skip, Start, Verdict, judge, stand_back, to_take_back

if TYPE_CHECKING:
    from .memory import Memory

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What the options of the task say about its leases."""

    remember_for: timedelta
    at_least: timedelta | None = None
    at_most: timedelta | None = None
    expect_within: timedelta | None = None
    insist_for: timedelta | None = None
    """How long to wait for a store that is away when the body has ended; None: until it is back."""


class Execution:
    """`begin`; after a `Start`, `Skip` or `Poisoned`, one of `finish`, `park`, `give_up`, `abandon`."""

    def __init__(
        self,
        ask: Ask,
        terms: Terms,
        store: LeaseStore,
        keep_alive: KeepAlive,
        *,
        memory: Memory | None = None,
        early: Callable[[], list[Answer] | None] | None = None,
    ) -> None:
        """`early`: the answers to `requests_of`, which are on their way; None: ask again."""
        self.ask = ask
        self.leases: Leases | None = None
        self._terms = terms
        self._store = store
        self._keep_alive = keep_alive
        self._memory = memory
        self._early = early
        self.may_be_forgotten_before: datetime | None = None
        """The store may have forgotten what was before this time; None: nothing."""
        self._began_at = 0.0
        self._ending = threading.Lock()

    def begin(
        self, on_lost: OnLost | None = None, on_overdue: Callable[[], None] | None = None
    ) -> Verdict:
        """One round trip; one more where not all is granted, and one before it where somebody may have
        begun. Raises `StoreUnavailable`. `on_lost` and `on_overdue` are for keep-alive."""
        if (keep := self._stand_back()) is not None:
            return keep
        answers, witness = self._acquire()
        verdict = judge(self.ask, answers)
        others = to_take_back(verdict, answers)
        if witness is not None and self._memory is not None:
            if isinstance(verdict, Start):
                self.may_be_forgotten_before = self._memory.since(witness)
            else:
                others = [*others, witness]
        if any(isinstance(answer, Granted) for answer in others):
            self._store.undo(others)
        match verdict:
            case Start(leases):
                self._hold(leases, on_lost, on_overdue)
            case Skip(lease=lease) | Poisoned(lease=lease):
                self.leases = Leases(lease)
        return verdict

    def _stand_back(self) -> Keep | None:
        ask = self.ask
        if not ask.may_take_over or ask.task_key is None:
            return None
        run, task = self._store.peek([ask.run_key, ask.task_key])
        keep = stand_back(ask, run, task)
        if keep is None:
            return None
        # So that the store tells when it is free. It may be by now.
        answers = self._store.acquire(ask.task_request())
        self._store.undo(answers)
        return None if isinstance(answers[0], Granted) else keep

    def _acquire(self) -> tuple[list[Answer], Answer | None]:
        early, self._early = self._early, None
        answers = None if early is None else early()
        if answers is None:
            answers = self._store.acquire(requests_of(self.ask, self._memory))
        witness = None if self._memory is None else answers.pop()
        return answers, witness

    def wait_since(self, began: float) -> None:
        """For one that waits in its own process: how long it does, for `lock_wait`."""
        self.ask = replace(self.ask, waited=timedelta(seconds=boottime() - began))

    def _hold(
        self, leases: Leases, on_lost: OnLost | None, on_overdue: Callable[[], None] | None
    ) -> None:
        self.leases = leases
        self._began_at = boottime()
        terms = self._terms
        self._keep_alive.guard(
            leases.run,
            on_lost=on_lost,
            expect_within=terms.expect_within,
            on_overdue=on_overdue,
        )
        if leases.task is not None:
            self._keep_alive.guard(leases.task, on_lost=on_lost, at_most=terms.at_most)
        if leases.call is not None:
            self._keep_alive.guard(leases.call)

    @property
    def fence(self) -> int:
        """As the body of the task sees it; 0 while nothing is held."""
        return 0 if self.leases is None else (self.leases.task or self.leases.run).fence

    @property
    def held_for(self) -> timedelta:
        return timedelta(seconds=boottime() - self._began_at)

    @property
    def has_outlived_its_lock(self) -> bool:
        """Whether `lock_at_most` is over: then the lease of the task ended as it should."""
        at_most = self._terms.at_most
        return at_most is not None and self.held_for >= at_most

    @property
    def is_late(self) -> bool:
        """Whether somebody else may have been granted the run, or the job. Asks nobody."""
        leases = self.leases
        held = () if leases is None else (leases.run, leases.task)
        return any(lease is not None and not lease.is_held for lease in held)

    def is_mine(self, lost: LeaseLost) -> bool:
        """Whether it is a lease of this execution that was lost, and not one of the user's own."""
        return self.leases is not None and lost.key in {lease.key for lease in self.leases.all}

    def has_lost_its_run(self) -> bool:
        """Whether somebody else was, or could be, granted the run. Asks the store only if the deadline
        has passed; then it waits for the answer, however long that takes."""
        if self.leases is None or self.leases.run.is_held:
            return False
        lease = self.leases.run
        # Keep-alive may be about to win it back.
        self._keep_alive.forget(lease)
        if lease.is_held:
            return False
        return not self._insist("run_check_waits", lambda: self._reclaim(lease), otherwise=True)

    def _reclaim(self, lease: Lease) -> bool:
        incarnation = self._store.incarnation
        self._store.now()  # one that forgot may not know of a successor
        if self._store.incarnation != incarnation:
            return False
        request = LeaseRequest(lease.key, lease.owner, lease.ttl, note=lease.note, reclaim=lease.fence)
        [answer] = self._store.acquire([request])
        if isinstance(answer, Granted):
            lease.regain(answer.lease.fence, answer.lease.deadline)
            return True
        lease.lapse()
        return False

    # Ends. Each gives back all that is held, in one round trip, and does so once.

    def finish(self, outcome: str, position: int = FINISHED) -> bool:
        """Record how far the run is, and free the rest. False: it was lost, and nothing is recorded."""
        return self._end(lambda leases: self._finishing(leases, outcome, position))

    def start_finish(self, outcome: str) -> Callable[[], bool]:
        """`finish`, on its way. What is returned waits for the answer; until then it is not sure."""
        leases = self._let_go()
        if leases is None:
            return lambda: False
        releases = self._finishing(leases, outcome, FINISHED)
        release: Callable[[], list[bool]] = partial(self._store.release, releases)
        try:
            first = self._store.start_release(releases)
        except StoreUnavailable:
            first = release
        ways = chain([first], repeat(release))
        return lambda: self._insist("run_end_waits", lambda: next(ways)()[0], otherwise=False)

    def _finishing(self, leases: Leases, outcome: str, position: int) -> list[Release]:
        releases = [Release(leases.run, position, outcome, self._terms.remember_for)]
        if leases.task is not None:
            releases.append(Release(leases.task, park=self._cooldown()))
        if leases.call is not None:
            releases.append(Release(leases.call))
        return releases

    def park(self, outcome: str, for_: timedelta, *, same_job: bool) -> bool:
        """Record the attempt, and leave the job closed to all but the next attempt of this run.
        `same_job`: whether that will ask for the same key."""
        park = Park(self.ask.run, for_ + self.ask.ttl)
        return self._end(
            lambda leases: [
                Release(leases.run, self.ask.position, outcome, self._terms.remember_for),
                *_each(leases.task, lambda lease: Release(lease, park=park if same_job else None)),
                *_each(leases.call, lambda lease: Release(lease, park=park if same_job else None)),
            ]
        )

    def give_up(self) -> bool:
        """Leave the run as it was before, with the job closed to all but it: it will be tried again."""
        park = Park(self.ask.run, self.ask.ttl)
        return self._end(
            lambda leases: [
                Release(leases.run, undo=True),
                *_each(leases.task, lambda lease: Release(lease, park=park)),
                *_each(leases.call, lambda lease: Release(lease, park=park)),
            ]
        )

    def abandon(self) -> None:
        """Stop renewing, and give nothing back: the leases run out, and that is counted."""
        self._let_go()

    def _let_go(self) -> Leases | None:
        """None: somebody else has ended it."""
        with self._ending:
            leases, self.leases = self.leases, None
        for lease in leases.all if leases else ():
            self._keep_alive.forget(lease)
        return leases

    def _end(self, releases: Callable[[Leases], Sequence[Release]]) -> bool:
        leases = self._let_go()
        if leases is None:
            return False
        given_back = releases(leases)
        return self._insist(
            "run_end_waits", lambda: self._store.release(given_back)[0], otherwise=False
        )

    def _cooldown(self) -> Park | None:
        at_least = self._terms.at_least
        if at_least is None or self.held_for >= at_least:
            return None
        return Park(None, at_least - self.held_for)

    def _insist(self, event: str, call: Callable[[], bool], *, otherwise: bool) -> bool:
        """Call until the store answers; `otherwise`, when the time for that is over. The message is not
        acknowledged meanwhile, so nothing is lost: without its record the run would be repeated."""
        patience = self._terms.insist_for
        give_up_at = float("inf") if patience is None else boottime() + patience.total_seconds()
        in_trouble = False
        while True:
            try:
                answer = call()
            except StoreUnavailable as error:
                if not in_trouble:
                    in_trouble = True
                    logger.warning("%s run=%s reason=%s", event, self.ask.run, error.reason)
                if boottime() >= give_up_at:
                    return otherwise
                # Soon, since the lease may have run out: whoever is first after the outage has it.
                time.sleep(0.1)
            else:
                if in_trouble:
                    logger.warning("%s_no_more run=%s", event, self.ask.run)
                return answer


def requests_of(ask: Ask, memory: Memory | None) -> list[LeaseRequest]:
    """All that is asked for at once. With a memory, what tells whether the store has lost its own comes
    last."""
    requests = ask.requests()
    if memory is not None:
        requests.append(memory.request(ask.owner))
    return requests


def _each(lease: Lease | None, release: Callable[[Lease], Release]) -> list[Release]:
    return [] if lease is None else [release(lease)]
