"""How long history is kept. One process at a time removes what is older, a few rows a transaction, so
that nobody waits for it."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import sqlalchemy as sa

from celery_singleton_lock.core.errors import LedgerUnavailable

from .claims import Claims
from .opening import Ledger
from .tables import AttemptRow, AuditRow, ClaimRow, GapRow, LetterRow, RunRow

logger = logging.getLogger(__name__)

CHUNK: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    keep_for: timedelta
    keep_most: int
    """Runs. Those of the last `remember_for` are kept however many they are: they are what tells a
    late copy of a message from a new run, if the lease store forgets."""
    remember_for: timedelta = timedelta(0)


class Pruning:
    EVERY: Final = timedelta(minutes=10)
    PAUSE_S: Final = 0.02
    """Between two transactions: others write, too."""
    PATIENCE: Final = timedelta(minutes=2)
    """To find the oldest of ten million that may stay, a database counts for some seconds."""

    def __init__(self, ledger: Ledger, retention: Retention) -> None:
        self._ledger = ledger
        self._retention = retention
        # Not all processes of a worker at once, when it starts.
        self._look_at = time.monotonic() + random.uniform(10, 60)  # nosec B311 # noqa: S311 - jitter, no secret

    def prune_sometimes(self) -> None:
        """Prune if it is time to, and nobody else has."""
        if time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + self.EVERY.total_seconds()
        try:
            if Claims(self._ledger).take_turn("prune", every=self.EVERY):
                self.prune()
        except LedgerUnavailable as error:
            logger.warning("history_not_pruned reason=%s", error)

    def prune(self) -> int:
        """Remove all that is to go now; return how many runs that were."""
        patient = self._ledger.with_timeout(self.PATIENCE)
        try:
            return _Pruner(patient, self._retention, self.PAUSE_S).prune()
        finally:
            patient.close()


class _Pruner:
    def __init__(self, ledger: Ledger, retention: Retention, pause_s: float) -> None:
        self._ledger = ledger
        self._retention = retention
        self._pause_s = pause_s

    def prune(self) -> int:
        now = datetime.now(UTC)
        oldest = now - max(self._retention.keep_for, self._retention.remember_for)
        boundary = self._boundary(now)
        runs = self._remove(RunRow, RunRow.due_at, max(oldest, boundary) if boundary else oldest)
        for table, column in (
            (AttemptRow, AttemptRow.ended_at),
            (LetterRow, LetterRow.dead_at),
            (GapRow, GapRow.ended_at),
            (AuditRow, AuditRow.at),
            (ClaimRow, ClaimRow.claimed_at),
        ):
            self._remove(table, column, oldest)
        if runs:
            logger.info("history_pruned ledger=%s runs=%d", self._ledger.name, runs)
        return runs

    def _boundary(self, now: datetime) -> datetime | None:
        """When the oldest run was due that may stay; None: there are not too many."""
        query = (
            sa.select(RunRow.due_at)
            .where(RunRow.prefix == self._ledger.prefix)
            .order_by(RunRow.due_at.desc(), RunRow.id.desc())
            .offset(self._retention.keep_most - 1)
            .limit(1)
        )
        found: datetime | None = self._ledger.read(lambda connection: connection.scalar(query))
        return None if found is None else min(found, now - self._retention.remember_for)

    def _remove(self, row: Any, column: Any, before: datetime) -> int:
        [key] = sa.inspect(row).primary_key
        # Chosen first: MySQL cannot limit what it deletes by a query on the same table.
        chosen = (
            sa.select(key)
            .where(row.prefix == self._ledger.prefix, column < before)
            .order_by(column)
            .limit(CHUNK)
        )

        def remove(connection: sa.Connection) -> int:
            keys = connection.scalars(chosen).all()
            if keys:
                connection.execute(sa.delete(row).where(key.in_(keys)))
            return len(keys)

        total = 0
        while True:
            removed = self._ledger.write(remove)
            total += removed
            if removed < CHUNK:
                return total
            time.sleep(self._pause_s)
