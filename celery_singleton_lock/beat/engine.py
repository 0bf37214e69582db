"""One replica of beat: looks what is due, claims it, has it published, and records how far it is.

No Celery in here, and no clock but the store's. Every replica is active; the lease on an entry, with
the slot as its position, decides who publishes.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

from celery_singleton_lock.core.clock import Clock, boottime
from celery_singleton_lock.core.errors import LeaseLost, StoreUnavailable
from celery_singleton_lock.core.facts import Listeners, MembersChanged, TroubleBegan, TroubleEnded
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.core.models import Page
from celery_singleton_lock.leases import LeaseStore

from . import book
from .agenda import Agenda
from .book import Configured, Defined, Job, Paused, Removed
from .dispatch import Dispatch
from .entries import BrokerUnavailable, Due, OnMissed, PlannedEntry, Publishes
from .membership import HEARTBEAT, Company
from .plan import entry_key
from .positions import Positions
from .reaper import Reaper
from .start_terms import StartTerms
from .unstarted import Unstarted
from .versions import Versions

logger = logging.getLogger(__name__)


class Roster(Protocol):
    """Knows the entries behind their names."""

    def turn(self, statement: Defined | Job | Removed) -> tuple[list[PlannedEntry], list[str]]:
        """Take a statement of the book in: the entries that are new or changed by it, and the keys of
        those that are gone."""


class Engine:
    """Call `tick` again and again, each time after the seconds that it returned."""

    def __init__(
        self,
        store: LeaseStore,
        publisher: Publishes,
        *,
        replica: str,
        slot_ttl: timedelta,
        lock_ttl: timedelta,
        start_within: timedelta | None = None,
        terms_of: Callable[[str], StartTerms | None] = lambda _: None,
        remember_for: timedelta = timedelta(hours=2),
        on_missed: OnMissed,
        listeners: Listeners | None = None,
        roster: Roster | None = None,
        app_name: str = "",
        clock: Clock = boottime,
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._listeners = listeners if listeners is not None else Listeners()
        self._roster = roster
        self._app_name = app_name
        self._book = beat_group(app_name)
        self._company = Company(store, self._book, replica, clock)
        self._agenda = Agenda()
        self._positions = Positions(store, self._company, slot_ttl, clock)
        self._entries: dict[str, PlannedEntry] = {}
        self._unstarted = Unstarted(
            store,
            publisher,
            self._company,
            self._listeners,
            app_name=app_name,
            find=self._entries.get,
            terms_of=terms_of,
            slot_ttl=slot_ttl,
            within=start_within,
            remember_for=remember_for,
            clock=clock,
        )
        self._dispatch = Dispatch(
            store,
            publisher,
            self._company,
            self._agenda,
            self._positions,
            slot_ttl=slot_ttl,
            on_missed=on_missed,
            on_published=self._unstarted.expect,
            clock=clock,
        )
        self._reaper = Reaper(
            store,
            publisher,
            self._company,
            self._listeners,
            slot_ttl=slot_ttl,
            lock_ttl=lock_ttl,
            clock=clock,
        )
        self._pages: dict[str, Page] = {}
        self._pauses: dict[str, Paused] = {}
        self._versions = Versions(self._company)
        self._read_to = 0
        self._heard_of = -1
        self._must_put_back = False
        self._trouble: str | None = None
        self._troubled_part = ""
        self._members_told: tuple[str, ...] = ()
        self._broker_was_away = False
        store.on_memory_loss(self._on_memory_loss)

    def follow(self, entries: Iterable[PlannedEntry]) -> None:
        """Take these entries for the whole of ``beat_schedule``, from the next tick on. No I/O."""
        for entry in self._entries.values():
            self._agenda.drop(entry)
        self._positions.forget()
        stay = [entry for entry in self._entries.values() if not entry.mark]
        self._entries.clear()
        for entry in (*entries, *stay):
            self._put(entry)

    def refuse(self, due: Due) -> None:
        """Say of a slot that it can never be published."""
        self._unstarted.refuse(due)

    @property
    def is_ready(self) -> bool:
        """Whether the last tick reached the store and the broker."""
        return self.why_not_ready is None

    @property
    def why_not_ready(self) -> str | None:
        """What the last tick could not reach; None: it reached all."""
        return (
            self._trouble if self._company.is_met else self._trouble or "it has not met the store yet"
        )

    @property
    def now(self) -> datetime | None:
        """The store's time; None before the store was reached."""
        return self._company.now() if self._company.is_met else None

    @property
    def is_newest(self) -> bool:
        """Whether no other replica that lives has started later: its definitions count."""
        return self._company.is_newest

    @property
    def revision(self) -> int:
        """How far it has read the book: a larger one means that somebody said something."""
        return self._read_to

    def entries(self) -> list[tuple[PlannedEntry, Paused | None]]:
        """All but jobs, as this replica knows them. May be called by other threads."""
        entries = [entry for entry in list(self._entries.values()) if not entry.is_job]
        return [(entry, self._pauses.get(entry.name)) for entry in entries]

    def tick(self) -> float:
        """Do all that is due now; return the seconds until something may be due again."""
        try:
            self._company.keep()
            self._tell_members()
            self._read_book()
            self._read_positions()
            self._dispatch.record()
            if self._broker_was_away:
                self._publisher.prepare()
                self._broker_was_away = False
            self._dispatch.do_what_is_due()
            self._close_what_ended()
            self._reaper.reap()
            self._unstarted.publish_again()
        except StoreUnavailable as error:
            self._company.hurry()
            self._reaper.wait()
            self._unstarted.wait()
            self._say(f"the lease store is away: {error.reason}", "store")
            return random.uniform(0.2, 0.5)  # nosec B311 # noqa: S311 - jitter, not a secret
        except BrokerUnavailable as error:
            self._broker_was_away = True
            self._say(f"the broker is away: {error}", "broker")
            return random.uniform(0.2, 0.5)  # nosec B311 # noqa: S311 - jitter, not a secret
        except LeaseLost as lost:
            # We slept between claim and publish. Somebody else did it, or we do it anew.
            logger.warning("beat_slept key=%r", lost.key)
            return 0.0
        self._say(None)
        return self._seconds_to_wait()

    def leave(self) -> None:
        """Say goodbye, so that the others take over at once. May be called twice."""
        try:
            self._dispatch.record()
            self._company.leave()
        except StoreUnavailable as error:
            logger.info("beat_left_silently reason=%s", error.reason)

    def _seconds_to_wait(self) -> float:
        until = self._company.seconds_to_heartbeat
        if self._agenda.first is not None:
            until = min(until, (self._agenda.first - self._company.now()).total_seconds())
        return max(0.0, until)

    # The book

    def _read_book(self) -> None:
        if self._must_put_back:
            self._store.write(self._book, list(self._pages.values()))
            self._read_to, self._must_put_back = 0, False
        elif self._heard_of == self._company.revision:
            return
        heard_of = self._company.revision
        reading = self._store.read(self._book, self._read_to)
        self._take_in(reading.pages)
        self._read_to, self._heard_of = reading.revision, heard_of

    def _take_in(self, pages: Iterable[Page]) -> None:
        for page in pages:
            known = self._pages.get(page.name)
            if known is not None and known.version >= page.version:
                continue
            self._pages[page.name] = page
            match book.read_page(page):
                case Paused() as paused:
                    self._pauses[paused.name] = paused
                    self._review(paused.name)
                case Configured() as configured:
                    self._versions.take_in(configured)
                    self._review(configured.name)
                case Defined() | Job() | Removed() as statement:
                    self._turn(statement)

    def _turn(self, statement: Defined | Job | Removed) -> None:
        changed, gone = self._roster.turn(statement) if self._roster else ([], [])
        for key in gone:
            self._drop(key)
        for entry in changed:
            self._put(entry)

    def _review(self, name: str) -> None:
        entry = self._entries.get(entry_key(self._app_name, name))
        if entry is not None:
            self._heed(entry)
            self._dispatch.put(entry)

    def _heed(self, entry: PlannedEntry) -> None:
        """Let the entry be paused, or stand aside, as the book says. Jobs are always done."""
        if entry.is_job:
            return
        paused = self._pauses.get(entry.name)
        if paused is not None:
            entry.is_paused = paused.is_paused
            entry.begin_after(paused.at)
        self._versions.heed(entry)

    def _close_what_ended(self) -> None:
        ended, self._dispatch.ended = self._dispatch.ended, []
        pages = [book.removal(entry.last_page) for entry in ended if entry.last_page]
        try:
            self._take_in(self._store.write(self._book, pages))
        except StoreUnavailable:
            self._dispatch.ended = ended
            raise

    # The entries

    def _put(self, entry: PlannedEntry) -> None:
        self._drop(entry.key)
        self._entries[entry.key] = entry
        self._heed(entry)
        self._positions.want([entry])

    def _drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._agenda.drop(entry)

    def _read_positions(self) -> None:
        for name in self._versions.to_review():
            self._review(name)
        while (reading := self._positions.read()).entries:
            pages = self._versions.to_announce(reading)
            self._take_in(self._store.write(self._book, pages))
            for entry in reading.entries:
                if self._entries.get(entry.key) is entry:
                    self._dispatch.put(entry)

    def _on_memory_loss(self) -> None:
        """The store may have forgotten: tell it what we know, and publish nothing until the others
        have had time to tell what they know."""
        self._must_put_back = True
        self._positions.forget()
        self._positions.want(self._entries.values())
        self._dispatch.keep_quiet(HEARTBEAT)
        self._reaper.wait()
        self._unstarted.forget()

    def _tell_members(self) -> None:
        members = self._company.members
        if members != self._members_told and self._listeners:
            self._members_told = members
            self._listeners.tell(
                MembersChanged(at=self._company.now(), replica=self._company.name, members=members)
            )

    def _say(self, trouble: str | None, part: str = "") -> None:
        """Log when a trouble begins and when it ends, once each; one may follow upon the other."""
        if trouble is None and self._trouble is not None:
            logger.warning("beat_trouble_ended")
        elif trouble is not None and self._trouble is None:
            logger.warning("beat_trouble_began reason=%s", trouble)
        self._trouble = trouble
        if part != self._troubled_part:
            self._tell_trouble(part, trouble or "")
            self._troubled_part = part

    def _tell_trouble(self, part: str, reason: str) -> None:
        if not self._listeners:
            return
        at = self.now or datetime.now(UTC)
        if self._troubled_part:
            self._listeners.tell(TroubleEnded(at=at, part=self._troubled_part))
        if part:
            self._listeners.tell(TroubleBegan(at=at, part=part, reason=reason))
