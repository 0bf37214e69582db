"""The one primitive, `LeaseStore`: what every store promises, and what is alike in all of them.

A store adapter writes the methods with an underscore, each one round trip to the place where the
records are. Deadlines, lateness, spent leases and the news of lost memory are handled here, once.
"""

from __future__ import annotations

import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol

from celery_singleton_lock.core.clock import MOST_DRIFT, Clock, boottime, drift_allowance
from celery_singleton_lock.core.errors import ConfigurationError, StoreUnavailable
from celery_singleton_lock.core.models import (
    Answer,
    Done,
    Granted,
    Held,
    Lease,
    LeaseRequest,
    Page,
    Reading,
    Record,
    Release,
    check_name,
)
from celery_singleton_lock.core.naming import fresh_name

logger = logging.getLogger(__name__)

EXPIRED_KEPT_FOR: Final = timedelta(days=1)
"""How long the record of a lease that ran out is kept: the time its last owner has to come back, and
the reaper to find it."""

LISTED: Final = "run:"
"""Keys that begin so are listed while they are held: `expired` finds the ones that ran out."""

DEFAULT_TIMEOUT: Final = timedelta(seconds=1)
DEFAULT_PREFIX: Final = "singleton"


class Grant(NamedTuple):
    """An adapter's word for `Granted`, before there is a deadline."""

    fence: int
    takeovers: int
    again: bool


Verdict = Grant | Held | Done


class Renewal(Enum):
    RENEWED = 1
    REFUSED = 2
    FORGOTTEN = 3
    """The store has no memory of this grant, nor of a later one."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Who is alive in a group, and what time it is in the store.

    `revision` changes whenever the book of the group's name does: then read it.
    """

    now: datetime
    members: tuple[str, ...]
    revision: int = 0


class Watch(Protocol):
    def wait(self, timeout: timedelta) -> bool:
        """Return True as soon as the watched lease was let go, False after `timeout`. May be wrong
        either way: ask for the lease to know."""


class Releases(Protocol):
    def next(self, timeout: timedelta) -> str | None:
        """The key of the next lease that was let go and that somebody waited for, whoever that is; None
        after `timeout`. Some may be missed. Raises `StoreUnavailable`."""


class PollingWatch:
    """For stores that cannot call: sleeps a little longer each time, with jitter."""

    FIRST = 0.02
    LONGEST = 1.0

    def __init__(self) -> None:
        self._delay = self.FIRST

    def wait(self, timeout: timedelta) -> bool:
        delay = self._delay * random.uniform(0.5, 1.0)  # nosec B311 # noqa: S311 - jitter, not a secret
        self._delay = min(self._delay * 2, self.LONGEST)
        time.sleep(max(0.0, min(delay, timeout.total_seconds())))
        return False


class LeaseStore(ABC):
    """Grants leases. Each call is one round trip, however many leases it carries.

    Contention is a value, never an exception. `StoreUnavailable` is raised when the store cannot be
    asked; the effect of that call is then unknown, and asking again with the same owner is safe.
    Instances may be shared by threads, and are usable again in a forked child.
    """

    def __init__(self, *, clock: Clock = boottime) -> None:
        self._clock = clock
        self._drift: Callable[[timedelta], float] = drift_allowance
        self._incarnation = 1
        self._reported_incarnation = 1
        self._marks: dict[str, str] = {}
        self._memory_listeners: list[Callable[[], None]] = []

    # What people and programs call.

    def acquire(self, requests: Sequence[LeaseRequest]) -> list[Answer]:
        """Answer each request, in order. Not all or nothing: see `acquire_all`."""
        if not requests:
            return []
        asked_at = self._clock()
        return self._answered(requests, asked_at, self._acquire(requests, fresh_name()))

    def start_acquire(self, requests: Sequence[LeaseRequest]) -> Callable[[], list[Answer]]:
        """`acquire`, on its way ahead of all that this thread asks for later. Call what is returned,
        once, for the answers. Where a store cannot do this, it has waited."""
        if not requests:
            return list
        asked_at = self._clock()
        verdicts = self._start_acquire(requests, fresh_name())
        return lambda: self._answered(requests, asked_at, verdicts())

    def _answered(
        self, requests: Sequence[LeaseRequest], asked_at: float, verdicts: Sequence[Verdict]
    ) -> list[Answer]:
        answered_at = self._clock()
        answers: list[Answer] = []
        late = False
        # Most requests of a batch have one ttl, and so one deadline.
        ttl, deadline = None, 0.0
        for request, verdict in zip(requests, verdicts, strict=True):
            if isinstance(verdict, Grant):
                if request.ttl is not ttl:
                    ttl = request.ttl
                    # Counted from before the request: the store's own deadline can only be later.
                    deadline = asked_at + ttl.total_seconds() - self._drift(ttl)
                fence, takeovers, again = verdict
                lease = Lease(request, fence, deadline, self._clock)
                answers.append(Granted(lease, takeovers, again))
                late = late or answered_at >= deadline
            else:
                answers.append(verdict)
        self._report_memory_loss()
        if late:
            self.undo(answers)
            took = answered_at - asked_at
            raise StoreUnavailable(self.name, f"it answered after {took:.3f} s, too late for the lease")
        return answers

    def renew(self, leases: Sequence[Lease]) -> list[bool]:
        """Extend each lease by its ttl. False: it is lost, or its deadline has passed.

        A lease that the store forgot (it was restarted empty, or failed over to a lagging replica) is
        put back, with its fence, unless somebody was granted it since.
        """
        for lease in leases:
            lease.ensure_not_released()
        asked_at = self._clock()
        live = [lease for lease in leases if lease.deadline > asked_at]
        if not live:
            return [False] * len(leases)
        renewals = self._renew(live)
        forgotten = [at for at, said in enumerate(renewals) if said is Renewal.FORGOTTEN]
        restored = self._restore([live[at] for at in forgotten]) if forgotten else []
        kept = {
            id(lease) for lease, said in zip(live, renewals, strict=True) if said is Renewal.RENEWED
        }
        kept.update(id(live[at]) for at, done in zip(forgotten, restored, strict=True) if done)
        for lease in live:
            if id(lease) in kept:
                ttl = lease.ttl
                lease.extend(asked_at + ttl.total_seconds() - self._drift(ttl))
        self._report_memory_loss()
        return [id(lease) in kept for lease in leases]

    def release(self, releases: Sequence[Release]) -> list[bool]:
        """Give leases back; each is spent afterwards. False: nothing was written, it was lost.

        The last owner may release after its deadline too, with its position, as long as nobody was
        granted since and the store remembers.
        """
        for release in releases:
            release.lease.ensure_not_released()
        if not releases:
            return []
        return self._released(releases, self._release(releases))

    def start_release(self, releases: Sequence[Release]) -> Callable[[], list[bool]]:
        """`release`, on its way ahead of all that this thread asks for later. Call what is returned,
        once, for the answer: only then it is sure. Where a store cannot do this, it has waited."""
        for release in releases:
            release.lease.ensure_not_released()
        if not releases:
            return list
        answer = self._start_release(releases)
        return lambda: self._released(releases, answer())

    def _released(self, releases: Sequence[Release], written: list[bool]) -> list[bool]:
        for release in releases:
            release.lease.spend()
        self._report_memory_loss()
        return written

    def undo(self, answers: Sequence[Answer]) -> None:
        """Take back what this call was granted; what the owner held before stays. Best effort: what
        cannot be taken back runs out by itself."""
        mine = [answer.lease for answer in answers if isinstance(answer, Granted) and not answer.again]
        try:
            self.release([Release(lease, undo=True) for lease in mine])
        except StoreUnavailable:
            for lease in mine:
                lease.spend()

    def acquire_all(self, requests: Sequence[LeaseRequest]) -> list[Answer]:
        """`acquire`, but what was granted is undone unless everything was."""
        answers = self.acquire(requests)
        if not all(isinstance(answer, Granted) for answer in answers):
            self.undo(answers)
        return answers

    def peek(self, keys: Sequence[str]) -> list[Record | None]:
        """The record under each key; None where there is none."""
        records = self._peek(keys) if keys else []
        self._report_memory_loss()
        return records

    def scan(self, prefix: str = "") -> Iterator[Record]:
        """All records whose key starts with `prefix`, in no order, without stopping others. A record
        that changes meanwhile may be missed or be seen twice."""
        return self._scan(prefix)

    def force_release(self, key: str, *, who: str, why: str) -> Record | None:
        """Take the lease from its holder, or from the heir it is parked for. Returns what was there;
        None if there was nothing to take. The holder finds its lease lost, and cannot finish."""
        check_name("name of who forces it", who)
        check_name("reason", why, 2048)
        taken = self._force_release(key, who, why)
        if taken is not None:
            logger.warning(
                "lease_forced key=%r holder=%r fence=%d who=%r why=%r",
                key, taken.owner, taken.fence, who, why,
            )  # fmt: skip
        return taken

    def expired(self, at_most: int = 100) -> list[Record]:
        """Leases of keys that begin with `LISTED`, whose holders let them run out; oldest first. The
        cost grows with those in progress, not with those remembered."""
        records = self._expired(at_most)
        self._report_memory_loss()
        return records

    def dismiss(self, records: Sequence[Record]) -> list[bool]:
        """Tell of these expired leases no more. False: it was taken over, or dismissed, since."""
        return self._dismiss([(record.key, record.fence) for record in records]) if records else []

    def write(self, book: str, pages: Sequence[Page]) -> list[Page]:
        """Keep these pages where the book has no newer ones; return them as they then stand. The
        group of the book's name hears of it, see `Meeting.revision`."""
        return self._write_pages(book, pages) if pages else []

    def read(self, book: str, after: int = 0) -> Reading:
        """What changed in a book after revision `after`; all of it after 0."""
        return self._read_pages(book, after)

    def now(self) -> datetime:
        """The store's time. Also looks whether the store lost its memory."""
        return self.meet("", "", timedelta(0)).now

    def meet(self, group: str, member: str, ttl: timedelta) -> Meeting:
        """Say that `member` of `group` is alive for `ttl`, or leaves if that is zero; hear who else is.
        Also looks whether the store lost its memory."""
        now, mark, members, revision = self._meet(group, member, ttl)
        if self._marks.setdefault(group, mark) != mark:
            self._marks[group] = mark
            self._notice_memory_loss()
        self._report_memory_loss()
        return Meeting(now, tuple(sorted(members)), revision)

    def watch(self, key: str) -> AbstractContextManager[Watch]:
        """Wait for the lease to be let go, between one `acquire` with ``waiting=True`` and the next."""
        return nullcontext(PollingWatch())

    def releases(self) -> AbstractContextManager[Releases] | None:
        """Hear of all leases that are let go while somebody, who asked with ``waiting=True``, waits for
        them. None: this store cannot tell."""
        return None

    @property
    @abstractmethod
    def name(self) -> str:
        """Which store this is, for logs and errors. Never contains a password."""

    @abstractmethod
    def close(self) -> None:
        """Close connections. Leases stay."""

    @property
    def incarnation(self) -> int:
        """Grows when this process noticed that the store may have lost its memory."""
        return self._incarnation

    def on_memory_loss(self, listener: Callable[[], None]) -> None:
        """Call `listener` when the store may have lost its memory, after the call that noticed it and
        in its thread. It should put back what it knows."""
        self._memory_listeners.append(listener)

    def allow_drift(self, rate: float) -> None:
        """By which part of a ttl the clocks of this host and of the store may drift apart: a lease ends
        that much earlier for its holder. `DRIFT`, unless this is called before the store is used."""
        if not 0 <= rate <= MOST_DRIFT:
            raise ConfigurationError(f"a clock drift of {rate} is not between 0 and {MOST_DRIFT}")
        self._drift = partial(drift_allowance, rate=rate)

    # What an adapter writes.

    @abstractmethod
    def _acquire(self, requests: Sequence[LeaseRequest], call: str) -> Sequence[Verdict]:
        """`call` names this call, also when it is sent twice: its own grant is not one made before."""

    def _start_acquire(
        self, requests: Sequence[LeaseRequest], call: str
    ) -> Callable[[], Sequence[Verdict]]:
        verdicts = self._acquire(requests, call)
        return lambda: verdicts

    @abstractmethod
    def _renew(self, leases: Sequence[Lease]) -> Sequence[Renewal]: ...

    @abstractmethod
    def _restore(self, leases: Sequence[Lease]) -> Sequence[bool]:
        """Write back leases that the store forgot; False where a later grant is known."""

    @abstractmethod
    def _release(self, releases: Sequence[Release]) -> list[bool]:
        """A lease that is held by its own deadline may be written into a store that forgot it."""

    def _start_release(self, releases: Sequence[Release]) -> Callable[[], list[bool]]:
        written = self._release(releases)
        return lambda: written

    @abstractmethod
    def _peek(self, keys: Sequence[str]) -> list[Record | None]: ...

    @abstractmethod
    def _scan(self, prefix: str) -> Iterator[Record]: ...

    @abstractmethod
    def _force_release(self, key: str, who: str, why: str) -> Record | None: ...

    @abstractmethod
    def _meet(
        self, group: str, member: str, ttl: timedelta
    ) -> tuple[datetime, str, Sequence[str], int]:
        """The store's time, a mark that is lost with the group's memory, the living members, and a
        number that changes with the book of that name."""

    @abstractmethod
    def _expired(self, at_most: int) -> list[Record]: ...

    @abstractmethod
    def _dismiss(self, grants: Sequence[tuple[str, int]]) -> list[bool]:
        """Each is (key, fence)."""

    @abstractmethod
    def _write_pages(self, book: str, pages: Sequence[Page]) -> list[Page]: ...

    @abstractmethod
    def _read_pages(self, book: str, after: int) -> Reading: ...

    # What an adapter calls.

    def _notice_memory_loss(self) -> None:
        """Tell that this may not be the store, or the data, of before. Cheap; safe while connecting."""
        self._incarnation += 1

    def _report_memory_loss(self) -> None:
        if self._incarnation == self._reported_incarnation:
            return
        # Listeners call the store themselves: the news must be old by then.
        self._reported_incarnation = self._incarnation
        logger.warning("store_memory_lost store=%s incarnation=%d", self.name, self._incarnation)
        for listener in tuple(self._memory_listeners):
            try:
                listener()
            except Exception:
                logger.exception("memory_listener_failed store=%s", self.name)
