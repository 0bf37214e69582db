"""Leases as people see them: who holds what, for how long, and how to take it away."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.models import Record, RecordState
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.leases.base import LISTED

from .audit import record as audit
from .audit import whoami

TAKEN: Final = (RecordState.HELD, RecordState.PARKED, RecordState.EXPIRED)
"""What is in somebody's hands, or was when its time ran out. The rest is memory of what is done."""

_IN_THE_NOTE: Final = ("worker", "task", "run", "entry", "slot", "attempt")


@dataclass(frozen=True, slots=True)
class Lock:
    """One lease. Times are the store's; `overdue_by` is None while it is within what was expected, and
    where nothing was (see the task option ``expect_within``)."""

    key: str
    state: RecordState
    owner: str
    fence: int
    since: datetime
    age: timedelta
    remaining: timedelta
    overdue_by: timedelta | None
    takeovers: int
    heir: str | None
    note: Mapping[str, Any]

    @classmethod
    def of(cls, record: Record, now: datetime) -> Lock:
        age = max(timedelta(0), now - record.since)
        return cls(
            record.key,
            record.state,
            record.owner,
            record.fence,
            record.since,
            age,
            record.remaining,
            _overdue(record, age),
            record.takeovers,
            record.heir,
            # The message of a run is for the reaper; people read it in a dead letter.
            {name: value for name, value in record.note.items() if name != "message"},
        )

    @property
    def holder(self) -> str:
        """The worker, beat or process that has it, as far as it told."""
        note = self.note
        if self.state is RecordState.FREE:
            return ""
        if note.get("host"):
            return f"{note['host']} pid {note.get('pid', '?')}"
        return str(note.get("worker") or note.get("beat") or self.owner)

    @property
    def name(self) -> str:
        """What people call it: the task of a run, else the key."""
        if self.kind in ("run", "task") and self.note.get("task"):
            return str(self.note["task"])
        return self.key

    @property
    def kind(self) -> str:
        """What the lease is for: ``run``, ``task``, ``call``, ``beat``, ``lock``..."""
        return self.key.partition(":")[0]

    @property
    def facts(self) -> dict[str, Any]:
        """For JSON: keys may be added, and none is renamed."""
        return {
            "key": self.key,
            "kind": self.kind,
            "state": self.state.value,
            "holder": self.holder,
            "owner": self.owner,
            "fence": self.fence,
            "since": self.since.isoformat(),
            "age_seconds": round(self.age.total_seconds(), 3),
            "remaining_seconds": round(self.remaining.total_seconds(), 3),
            "overdue_seconds": (
                None if self.overdue_by is None else round(self.overdue_by.total_seconds(), 3)
            ),
            "takeovers": self.takeovers,
            "heir": self.heir,
            "note": dict(self.note),
        }


def _overdue(record: Record, age: timedelta) -> timedelta | None:
    expected = record.note.get("expect_within")
    if record.state is not RecordState.HELD or not isinstance(expected, int | float):
        return None
    over = age - timedelta(seconds=expected)
    return over if over > timedelta(0) else None


def locks_in(
    store: LeaseStore, prefix: str = "", states: Collection[RecordState] = TAKEN
) -> Iterator[Lock]:
    """Those whose key begins with `prefix`, in no order, read in pages: nobody waits for it."""
    now = store.now()
    for record in store.scan(prefix):
        if record.state in states:
            yield Lock.of(record, now)


def look_at(store: LeaseStore, key: str) -> Lock | None:
    """The record under `key`, whatever its state; None if there is none."""
    [record] = store.peek([key])
    return None if record is None else Lock.of(record, store.now())


def why_not_unlock(lock: Lock) -> str:
    """What a person should know who wants to take `lock` away, and would do harm; empty if none."""
    if lock.state is RecordState.EXPIRED and lock.key.startswith(LISTED):
        return (
            "its time has run out, so nobody holds it: beat publishes the run again. To unlock it "
            "would make beat forget the run"
        )
    return ""


def unlock(store: LeaseStore, key: str, *, why: str, who: str = "", app: Any = None) -> Lock | None:
    """Take the lease from its holder, who finds it lost and cannot finish. The fence moves: what the
    holder still writes with the old one can be refused. Returns what was there; None if nothing was
    to be taken. Raises `ConfigurationError` where that would do harm, see `why_not_unlock`.
    `app`: whose ledger has the audit."""
    lock = look_at(store, key)
    if lock is not None and (harm := why_not_unlock(lock)):
        raise ConfigurationError(f"{key!r} is not unlocked: {harm}")
    who = who or whoami()
    taken = store.force_release(key, who=who, why=why)
    if taken is None:
        return None
    audit("unlocked", who, app=app, key=key, holder=taken.owner, fence=taken.fence, why=why)
    return Lock.of(taken, store.now())


def is_worth_knowing(note: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """What a note tells people, in a fixed order and without what is empty."""
    known = [(name, note[name]) for name in _IN_THE_NOTE if note.get(name) not in (None, "")]
    rest = [(name, value) for name, value in note.items() if name not in _IN_THE_NOTE]
    return known + [(name, value) for name, value in rest if value not in (None, "")]
