"""What the pages of one Flower work with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final

from celery_singleton_lock.beat.book import Job
from celery_singleton_lock.beat.entry_state import EntryState
from celery_singleton_lock.bootstrap import open_schedule
from celery_singleton_lock.ledger import ledger_of
from celery_singleton_lock.observability.looks import Looks
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.recovery.locks import Lock, locks_in
from celery_singleton_lock.worker.parts import parts_of

from .asking import Asking, Snapshot
from .history import History
from .past_runs import PastRuns
from .seen_runs import SeenRuns


@dataclass(frozen=True, slots=True)
class ScheduleSeen:
    now: datetime
    entries: list[EntryState]
    jobs: list[Job]
    replicas: list[str]


@dataclass(frozen=True, slots=True)
class LocksSeen:
    now: datetime
    locks: list[Lock]


@dataclass(frozen=True, slots=True)
class LettersSeen:
    queue: str
    letters: list[Letter]
    are_all: bool


MOST_LETTERS: Final = 5000
"""A page with more is of no use to anybody; and each is read from the broker."""


class Desk:
    def __init__(self, flower: Any) -> None:
        self.app: Final = flower.capp
        self.asking: Final = Asking()
        self.schedule: Final = Snapshot(self.asking, self._look_at_schedule)
        self.locks: Final = Snapshot(self.asking, self._look_at_locks)
        # To look, RabbitMQ has to hand out all of them, and to take them back.
        self.letters: Final = Snapshot(self.asking, self._look_at_letters, fresh_for_s=5)
        self.numbers: Final = Snapshot(self.asking, lambda: self._looks.rows())
        ledger = ledger_of(self.app)
        self.history: Final[History] = (
            SeenRuns(flower) if ledger is None else PastRuns(ledger, self.asking)
        )

    @cached_property
    def _looks(self) -> Looks:
        parts = parts_of(self.app)
        return Looks(self.app, parts.settings, parts.store)

    def _look_at_schedule(self) -> ScheduleSeen:
        schedule = open_schedule(self.app)
        now = parts_of(self.app).store.now()
        return ScheduleSeen(now, schedule.entries(), schedule.jobs(), schedule.replicas())

    def _look_at_locks(self) -> LocksSeen:
        store = parts_of(self.app).store
        now = store.now()
        # One may be seen twice.
        locks = {lock.key: lock for lock in locks_in(store)}
        return LocksSeen(now, sorted(locks.values(), key=lambda lock: (lock.since, lock.key)))

    def _look_at_letters(self) -> LettersSeen:
        letters = dead_letters_of(self.app)
        found = letters.list(limit=MOST_LETTERS + 1)
        return LettersSeen(letters.queue, found[:MOST_LETTERS], len(found) <= MOST_LETTERS)


_ATTRIBUTE: Final = "_singleton_desk"


def desk_of(flower: Any) -> Desk:
    """The one of this Flower, made when the first page is opened: then its app is ready."""
    kept: dict[str, Any] = flower.__dict__
    if _ATTRIBUTE not in kept:
        kept[_ATTRIBUTE] = Desk(flower)
    desk: Desk = kept[_ATTRIBUTE]
    return desk
