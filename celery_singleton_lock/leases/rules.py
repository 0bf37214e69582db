"""The rules of the lease over one record, without I/O: for stores that compute in Python.

The Lua scripts say the same; the conformance kit holds both to it. Times are µs of the store's clock.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol, TypeVar

from celery_singleton_lock.core.models import (
    FINISHED,
    Done,
    Held,
    Lease,
    LeaseRequest,
    Record,
    RecordState,
    Release,
    decode_note,
    encode_note,
)

from .base import EXPIRED_KEPT_FOR, LISTED, Grant, Renewal, Verdict

_MICROSECOND: Final = timedelta(microseconds=1)
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def microseconds(span: timedelta) -> int:
    return span // _MICROSECOND


def utc(at: int) -> datetime:
    return _EPOCH + timedelta(microseconds=at)


@dataclass(frozen=True, slots=True)
class Row:
    """One record. `until` is 0 when the lease was given back; a past one means that it ran out."""

    owner: str = ""
    fence: int = 0
    until: int = 0
    since: int = 0
    position: int | None = None
    outcome: str | None = None
    heir: str | None = None
    parked_until: int = 0
    takeovers: int = 0
    note: str = ""
    kept_until: int = 0
    call: str = ""
    """The call that made the grant."""
    released: int = 0
    """The fence of the lease that was given back last."""
    listed: int = 0
    """The same as `until`, where the lease is one of those that `LeaseStore.expired` tells of."""

    def is_owned(self, lease: Lease) -> bool:
        return self.fence == lease.fence and self.owner == lease.owner


BLANK: Final = Row()
"""What stands under a key that has no record."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, and the call that carries it: the same when it is sent again."""

    request: LeaseRequest
    call: str


@dataclass(frozen=True, slots=True)
class Force:
    key: str
    who: str
    why: str


@dataclass(frozen=True, slots=True)
class Attendance:
    member: str
    ttl: timedelta


def group_key(group: str) -> str:
    """Where a group meets: a key that no lease can have. Its row has no fence, either."""
    return f"\0group:{group}"


Item = TypeVar("Item", contravariant=True)
Reply = TypeVar("Reply", covariant=True)


class Rule(Protocol[Item, Reply]):
    """Answers one item for the row under its key; returns the row itself where nothing changes."""

    def __call__(self, row: Row, item: Item, now: int, /) -> tuple[Row, Reply]: ...


@dataclass(frozen=True, slots=True)
class Dismissal:
    fence: int


def _listed(key: str, until: int) -> int:
    return until if key.startswith(LISTED) else 0


def acquire(row: Row, asked: Asked, now: int) -> tuple[Row, Verdict]:
    request = asked.request
    until = now + microseconds(request.ttl)
    kept_until = max(row.kept_until, until + microseconds(EXPIRED_KEPT_FOR))
    if request.position is not None and row.position is not None and row.position >= request.position:
        return row, Done(row.position, row.outcome)
    if row.until > now:
        if row.owner == request.owner:
            until = max(row.until, until)
            extended = replace(
                row, until=until, listed=_listed(request.key, until), kept_until=kept_until
            )
            # A reply that was lost, and asked for again within one call, is no second grant.
            return extended, Grant(row.fence, row.takeovers, again=row.call != asked.call)
        return row, _held(row.owner, row.until - now)
    ran_out = row.until != 0
    is_last_owner = row.owner == request.owner
    comes_back = ran_out and is_last_owner and row.fence == request.reclaim
    is_heir = row.heir is not None and row.heir == request.heir
    if row.parked_until > now and not (is_heir or comes_back):
        return row, _held(row.heir or row.owner, row.parked_until - now)
    if request.reclaim is not None and not comes_back:
        return row, _held(row.owner, 0)
    granted = replace(
        row,
        owner=request.owner,
        fence=max(row.fence + 1, now),
        until=until,
        listed=_listed(request.key, until),
        since=now,
        takeovers=row.takeovers + (ran_out and not is_last_owner),
        note=encode_note(request.note),
        kept_until=kept_until,
        call=asked.call,
    )
    if row.parked_until <= now:
        granted = replace(granted, heir=None, parked_until=0)
    return granted, Grant(granted.fence, granted.takeovers, again=False)


def _held(by: str, remaining: int) -> Held:
    return Held(by, timedelta(microseconds=remaining))


def renew(row: Row, lease: Lease, now: int) -> tuple[Row, Renewal]:
    if row.is_owned(lease) and row.until > now:
        return _extended(row, lease, now), Renewal.RENEWED
    return row, Renewal.FORGOTTEN if row.fence < lease.fence else Renewal.REFUSED


def restore(row: Row, lease: Lease, now: int) -> tuple[Row, bool]:
    if row.fence >= lease.fence:
        return row, False
    mine = replace(row, owner=lease.owner, fence=lease.fence, since=now, note=encode_note(lease.note))
    return _extended(mine, lease, now), True


def _extended(row: Row, lease: Lease, now: int) -> Row:
    until = now + microseconds(lease.ttl)
    kept_until = max(row.kept_until, until + microseconds(EXPIRED_KEPT_FOR))
    return replace(row, until=until, listed=_listed(lease.key, until), kept_until=kept_until)


def release(row: Row, release: Release, now: int) -> tuple[Row, bool]:
    lease = release.lease
    forgotten = row.fence < lease.fence and lease.is_held
    if row.released == lease.fence:
        # It was given back before, by a call whose reply was lost.
        return row, True
    if not (row.is_owned(lease) or forgotten):
        return row, False
    given_back = replace(
        row, owner=lease.owner, fence=lease.fence, until=0, listed=0, note="", released=lease.fence
    )
    if release.undo:
        return given_back, True
    park = release.park
    parked_until = now + microseconds(park.ttl) if park else 0
    kept_until = max(now, parked_until) + microseconds(release.keep_for)
    if release.position is None and row.position is not None:
        # The position was promised a longer life by the release that recorded it.
        kept_until = max(kept_until, row.kept_until)
    given_back = replace(
        given_back,
        heir=park.heir if park else None,
        parked_until=parked_until,
        takeovers=0,
        kept_until=kept_until,
    )
    if release.position is not None and release.position >= (row.position or 0):
        given_back = replace(given_back, position=release.position, outcome=release.outcome)
    return given_back, True


def force_release(row: Row, force: Force, now: int) -> tuple[Row, Record | None]:
    if row.until == 0 and row.parked_until <= now:
        return row, None
    # The fence moves, so that the holder can neither renew nor finish: it was taken out.
    freed = replace(
        row,
        fence=max(row.fence + 1, now),
        until=0,
        listed=0,
        since=now,
        heir=None,
        parked_until=0,
        note=encode_note({"forced_by": force.who, "reason": force.why, "holder": row.owner}),
    )
    return freed, record(force.key, row, now)


def dismiss(row: Row, dismissal: Dismissal, now: int) -> tuple[Row, bool]:
    if row.fence != dismissal.fence or not 0 < row.listed <= now:
        return row, False
    return replace(row, listed=0), True


def peek(row: Row, key: str, now: int) -> tuple[Row, Record | None]:
    return row, None if row is BLANK else record(key, row, now)


Met = tuple[datetime, str, list[str], int]
"""The store's time, the group's mark, who is alive, and a number that grows with the group's book."""


def meet(row: Row, attendance: Attendance, now: int) -> tuple[Row, Met]:
    """The row of a group: its mark as owner, and in its note until when each member lives."""
    mark = row.owner or uuid.uuid4().hex
    members = {name: until for name, until in decode_note(row.note).items() if until > now}
    if attendance.member:
        members.pop(attendance.member, None)
        if attendance.ttl:
            members[attendance.member] = now + microseconds(attendance.ttl)
    reply = (utc(now), mark, list(members), row.position or 0)
    if not attendance.member and row.owner:
        return row, reply
    met = replace(row, owner=mark, note=encode_note(members), since=now, kept_until=FINISHED)
    return met, reply


def tell_group(row: Row, _: object, now: int) -> tuple[Row, None]:
    """The row of a group whose book was changed."""
    return replace(row, position=max((row.position or 0) + 1, now), kept_until=FINISHED), None


def record(key: str, row: Row, now: int) -> Record:
    if row.until > now:
        state, until = RecordState.HELD, row.until
    elif row.parked_until > now:
        state, until = RecordState.PARKED, row.parked_until
    elif row.until:
        state, until = RecordState.EXPIRED, row.until
    else:
        state, until = RecordState.FREE, 0
    return Record(
        key=key,
        state=state,
        owner=row.owner,
        fence=row.fence,
        since=utc(row.since),
        until=utc(until) if until else None,
        remaining=timedelta(microseconds=max(0, until - now)),
        position=row.position,
        outcome=row.outcome,
        heir=row.heir,
        takeovers=row.takeovers,
        note=decode_note(row.note),
        is_listed=row.listed > 0,
    )
