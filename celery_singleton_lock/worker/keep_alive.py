"""Keeps the leases of a process alive, and tells their holders when that failed.

Two threads, started with the first lease: one renews, and may hang in the network; one watches the
deadlines, and never does I/O. A single thread that waits for a server cannot tell anybody the time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from celery_singleton_lock.core.clock import Clock, boottime
from celery_singleton_lock.core.errors import LeaseLost, LeaseReleased, StoreUnavailable
from celery_singleton_lock.core.models import Granted, Lease, LeaseRequest
from celery_singleton_lock.leases import LeaseStore

from .forks import begin_in_children

logger = logging.getLogger(__name__)

OnLost = Callable[[LeaseLost], None]


@dataclass(slots=True, eq=False)
class _Guard:
    lease: Lease
    on_lost: OnLost | None
    ends_at: float
    """When the lease has had its whole life (`at_most`); infinity without one."""
    renew_at: float
    incarnation: int
    overdue_at: float = float("inf")
    on_overdue: Callable[[], None] | None = None
    is_told: bool = False


class KeepAlive:
    """Renews leases at a third of their ttl, all that are near it in one call.

    A holder is told once its deadline has passed, within `LOOK_EVERY` seconds of being able to run.
    After that the lease is not renewed, but acquired anew, with a larger fence, if nobody was granted
    it since and the store remembers: the holder's `ensure_held` passes again.
    """

    LOOK_EVERY = 0.05
    RETRY_AFTER = 0.5
    LINGER = 1.0
    """How long the threads stay awake without a lease: to wake them costs as much as a lease does."""

    def __init__(self, store: LeaseStore, *, clock: Clock = boottime) -> None:
        self._store = store
        self._clock = clock
        self._begin()
        store.on_memory_loss(self._renew_all_soon)
        begin_in_children(self._begin)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._reclaiming = threading.Lock()
        self._guards: dict[int, _Guard] = {}
        self._threads: list[threading.Thread] = []
        self._in_trouble = False
        self._guarded_at = float("-inf")
        """When the last lease came. Not seen by looking: a short task is gone when a thread may run."""
        self._renewer_wakes_at = 0.0
        self._watcher_sleeps = False

    def guard(
        self,
        lease: Lease,
        *,
        on_lost: OnLost | None = None,
        at_most: timedelta | None = None,
        expect_within: timedelta | None = None,
        on_overdue: Callable[[], None] | None = None,
    ) -> None:
        """Keep `lease` until `forget`, or for `at_most` from now. `on_lost` is called in a thread of
        its own when the deadline passed; again if the lease was regained and lost once more.
        `on_overdue` is called likewise, once, if it is still kept after `expect_within`."""
        now = self._clock()
        guard = _Guard(
            lease,
            on_lost,
            ends_at=now + at_most.total_seconds() if at_most else float("inf"),
            renew_at=0.0,
            incarnation=self._store.incarnation,
            overdue_at=now + expect_within.total_seconds() if expect_within else float("inf"),
            on_overdue=on_overdue,
        )
        self._plan(guard, now)
        with self._changed:
            self._guards[id(lease)] = guard
            self._guarded_at = now
            self._start_threads()
            if self._watcher_sleeps or guard.renew_at < self._renewer_wakes_at:
                self._changed.notify_all()

    def forget(self, lease: Lease) -> None:
        """Let `lease` alone: call this before it is released. Harmless if it is not guarded."""
        with self._changed:
            guard = self._guards.pop(id(lease), None)
        if guard is not None and not lease.is_held:
            # It may be on its way to a new fence, and must not be released under the old one.
            with self._reclaiming:
                return

    @property
    def leases(self) -> list[Lease]:
        """The leases in keeping."""
        with self._changed:
            return [guard.lease for guard in self._guards.values()]

    def _plan(self, guard: _Guard, now: float) -> None:
        ttl = guard.lease.ttl.total_seconds()
        # Two renewals must fit in one ttl, or one dropped packet loses the lease. The last one is
        # timed so that the lease ends with its life.
        last = guard.ends_at - ttl
        guard.renew_at = min(now + ttl / 3, last) if last > now else float("inf")

    def _start_threads(self) -> None:
        if self._threads:
            return
        for name, work in (("renew", self._keep_renewing), ("watch", self._keep_watching)):
            thread = threading.Thread(target=work, name=f"singleton-{name}", daemon=True)
            self._threads.append(thread)
            thread.start()

    # The watching thread

    def _keep_watching(self) -> None:
        while True:
            with self._changed:
                self._wait_for_guards()
                # A short nap even when deadlines are far: the monotonic clock that times it stands
                # still while the machine sleeps, and the deadline does not.
                self._changed.wait(self.LOOK_EVERY)
                now = self._clock()
                passed = [
                    guard
                    for guard in self._guards.values()
                    if guard.lease.deadline <= now and not guard.is_told
                ]
                for guard in passed:
                    guard.is_told = True
                    # Won back, it would last for a whole ttl: not where its life ends before that.
                    has_life = guard.ends_at - now >= guard.lease.ttl.total_seconds()
                    guard.renew_at = now if has_life else float("inf")
                overdue = [guard for guard in self._guards.values() if guard.overdue_at <= now]
                for guard in overdue:
                    guard.overdue_at = float("inf")
                if passed:
                    self._changed.notify_all()
            for guard in passed:
                self._tell(guard)
            for guard in overdue:
                _tell_overdue(guard)

    def _wait_for_guards(self) -> None:
        while not self._guards:
            self._watcher_sleeps = self._clock() - self._guarded_at >= self.LINGER
            self._changed.wait(None if self._watcher_sleeps else self.LOOK_EVERY)
        self._watcher_sleeps = False

    def _tell(self, guard: _Guard) -> None:
        lease = guard.lease
        if lease.is_released:
            return
        logger.warning("lease_lost key=%r fence=%d owner=%r", lease.key, lease.fence, lease.owner)
        if guard.on_lost is not None:
            # In a thread of its own: a slow receiver must not keep the others from being told.
            telling = (guard.on_lost, LeaseLost(lease.key, lease.fence))
            threading.Thread(target=_call, args=telling, name="singleton-tell", daemon=True).start()

    # The renewing thread

    def _keep_renewing(self) -> None:
        while True:
            due = self._wait_for_due()
            try:
                self._renew([guard for guard in due if guard.lease.is_held])
                self._reclaim([guard for guard in due if not guard.lease.is_held])
                self._log_trouble(None)
            except LeaseReleased:
                # Its holder was quicker than we. The others are still due.
                continue
            except StoreUnavailable as error:
                self._retry_soon(due)
                self._log_trouble(error)
            except Exception:
                # This thread's death would go unseen by the holders it serves.
                self._retry_soon(due)
                logger.exception("keep_alive_failed")

    def _wait_for_due(self) -> list[_Guard]:
        with self._changed:
            while True:
                now = self._clock()
                guards = [guard for guard in self._guards.values() if not guard.lease.is_released]
                self._guards = {id(guard.lease): guard for guard in guards}
                if any(guard.renew_at <= now for guard in guards):
                    # Whoever is on the way to it comes along: one call for all.
                    return [
                        guard
                        for guard in guards
                        if guard.renew_at - guard.lease.ttl.total_seconds() / 6 <= now
                    ]
                next_due = min((guard.renew_at for guard in guards), default=float("inf"))
                if not guards and now < (sleeps_at := self._guarded_at + self.LINGER):
                    next_due = sleeps_at
                self._renewer_wakes_at = next_due
                self._changed.wait(None if next_due == float("inf") else next_due - now)

    def _renew(self, guards: Sequence[_Guard]) -> None:
        if not guards:
            return
        asked_at = self._clock()
        renewed = self._store.renew([guard.lease for guard in guards])
        with self._changed:
            for guard, kept in zip(guards, renewed, strict=True):
                if kept:
                    guard.incarnation = self._store.incarnation
                    self._plan(guard, asked_at)
                elif not guard.lease.is_released:
                    # The store says that it is gone, before our own deadline.
                    guard.lease.lapse()
            self._changed.notify_all()

    def _reclaim(self, guards: Sequence[_Guard]) -> None:
        if not guards:
            return
        # Ask first who the store is: one that forgot may not know of a successor.
        self._store.now()
        with self._reclaiming:
            wanted = [guard for guard in guards if id(guard.lease) in self._guards]
            lost = [guard for guard in wanted if guard.incarnation != self._store.incarnation]
            hopeful = [guard for guard in wanted if guard not in lost]
            answers = self._store.acquire([_reclaiming(guard.lease) for guard in hopeful])
            for guard, answer in zip(hopeful, answers, strict=True):
                if isinstance(answer, Granted):
                    self._regain(guard, answer.lease)
                else:
                    lost.append(guard)
        for guard in lost:
            self._give_up(guard)

    def _regain(self, guard: _Guard, anew: Lease) -> None:
        with self._changed:
            guard.lease.regain(anew.fence, anew.deadline)
            guard.is_told = False
            self._plan(guard, self._clock())
        logger.warning("lease_regained key=%r fence=%d", anew.key, anew.fence)

    def _give_up(self, guard: _Guard) -> None:
        with self._changed:
            told, guard.is_told = guard.is_told, True
            guard.renew_at = float("inf")
            guard.lease.lapse()
        if not told:
            self._tell(guard)

    def _retry_soon(self, guards: Sequence[_Guard]) -> None:
        with self._changed:
            now = self._clock()
            for guard in guards:
                ttl = guard.lease.ttl.total_seconds()
                guard.renew_at = now + min(self.RETRY_AFTER, ttl / 6)

    def _renew_all_soon(self) -> None:
        with self._changed:
            now = self._clock()
            for guard in self._guards.values():
                guard.renew_at = min(guard.renew_at, now)
            self._changed.notify_all()

    def _log_trouble(self, error: StoreUnavailable | None) -> None:
        if (error is not None) != self._in_trouble:
            self._in_trouble = error is not None
            if error:
                logger.warning("keep_alive_trouble_began store=%s reason=%s", error.store, error.reason)
            else:
                logger.warning("keep_alive_trouble_ended store=%s", self._store.name)


def _tell_overdue(guard: _Guard) -> None:
    logger.warning("lease_overdue key=%r owner=%r", guard.lease.key, guard.lease.owner)
    if guard.on_overdue is not None:
        threading.Thread(target=guard.on_overdue, name="singleton-tell", daemon=True).start()


def _call(receiver: OnLost, loss: LeaseLost) -> None:
    try:
        receiver(loss)
    except Exception:
        logger.exception("lease_lost_receiver_failed key=%r", loss.key)


def _reclaiming(lease: Lease) -> LeaseRequest:
    return LeaseRequest(lease.key, lease.owner, lease.ttl, note=lease.note, reclaim=lease.fence)
