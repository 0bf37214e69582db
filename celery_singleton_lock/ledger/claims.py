"""Claims: who may finish a run, or write for a job, judged by one conditional write.

A claim is a row with a fence that only grows. Whoever comes with a smaller one than was seen there is
stale, and whoever comes to a finished one has nothing left to do. No lock is held between statements:
that the row was written, in the transaction of whoever asks, is the answer.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from celery_singleton_lock.databases import dialect_of

from .opening import Ledger
from .tables import ClaimRow, metadata

_CLAIMS: Final = metadata.tables[ClaimRow.__tablename__]
_KEY: Final = ("digest",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an execution claims: `key` is that of its lease, and so is `fence`."""

    key: str
    owner: str
    fence: int
    position: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The claim is the asker's."""


@dataclass(frozen=True, slots=True)
class Finished:
    """Somebody has finished it, and said this `result` of it."""

    result: Any


@dataclass(frozen=True, slots=True)
class Stale:
    """Somebody with a larger fence has claimed it."""

    owner: str
    fence: int


Answer = Taken | Finished | Stale


class Claims:
    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def take(self, claim: Claim) -> Answer:
        """Claim, in a transaction of its own: nobody with a smaller fence finishes it after this.
        Raises `LedgerUnavailable`."""

        def work(connection: sa.Connection) -> Answer:
            row = self._write(connection, claim, None)
            if row.finished_at is not None:
                return Finished(json.loads(row.result))
            return Taken() if _is_of(row, claim) else Stale(row.owner, row.fence)

        return self._ledger.write(work)

    def pass_by(self, connection: sa.Connection, claim: Claim) -> bool:
        """In the asker's own transaction: write down its fence. False: a larger one was there."""
        return _is_of(self._write(connection, claim, None), claim)

    def finish(self, connection: sa.Connection, claim: Claim, result: str) -> bool:
        """In the asker's own transaction: finish, with a result in JSON. False: it is finished already,
        or claimed with a larger fence, and the transaction must not be committed."""
        row = self._write(connection, claim, result)
        return row.finished_at is not None and _is_of(row, claim)

    def _write(self, connection: sa.Connection, claim: Claim, result: str | None) -> sa.Row[Any]:
        """Write the claim if it is still to be had, and return its row, which is locked by that."""
        now = datetime.now(UTC)
        digest = self.digest(claim.key)
        row = {
            "digest": digest,
            "prefix": self._ledger.prefix,
            "key": claim.key,
            "owner": claim.owner,
            "fence": claim.fence,
            "position": claim.position,
            "claimed_at": now,
            "finished_at": None if result is None else now,
            "result": result,
        }
        connection.execute(dialect_of(connection).upsert(_CLAIMS, _KEY, _if_to_be_had), [row])
        query = sa.select(_CLAIMS).where(_CLAIMS.c.digest == digest).with_for_update()
        return connection.execute(query).one()

    def take_turn(self, name: str, *, every: timedelta) -> bool:
        """Whether nobody else has had this turn for so long; then it is the asker's."""
        now = datetime.now(UTC)
        number = int(now.timestamp() * 1_000_000)
        before = number - int(every.total_seconds() * 1_000_000)
        digest = self.digest(f"turn:{name}")

        def work(connection: sa.Connection) -> bool:
            seen = connection.scalar(sa.select(_CLAIMS.c.fence).where(_CLAIMS.c.digest == digest))
            if seen is not None:
                late = sa.update(_CLAIMS).where(_CLAIMS.c.digest == digest, _CLAIMS.c.fence <= before)
                return bool(connection.execute(late.values(fence=number, claimed_at=now)).rowcount)
            row = {
                "digest": digest,
                "prefix": self._ledger.prefix,
                "key": f"turn:{name}",
                "owner": "",
                "fence": number,
                "position": 0,
                "claimed_at": now,
            }
            # Should somebody else be quicker, this is tried again, and finds the row.
            connection.execute(sa.insert(_CLAIMS), row)
            return True

        return self._ledger.write(work)

    def digest(self, key: str) -> str:
        return hashlib.sha256(f"{self._ledger.prefix}\0{key}".encode()).hexdigest()


def _if_to_be_had(new: Any) -> dict[str, Any]:
    old = _CLAIMS.c
    is_free = sa.and_(old.finished_at.is_(None), old.fence <= new.fence, old.position <= new.position)
    # What the condition looks at comes last, the end of it at the very end: MySQL makes one change
    # after the other, and looks at what it has made.
    names = ("owner", "claimed_at", "result", "position", "fence", "finished_at")
    return {name: sa.case((is_free, new[name]), else_=old[name]) for name in names}


def _is_of(row: sa.Row[Any], claim: Claim) -> bool:
    return bool(row.owner == claim.owner and row.fence == claim.fence)
