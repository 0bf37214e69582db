"""Whether the lease store still knows what it knew. A store that was emptied grants what was done long
ago; it has also forgotten a record that we left there, and is asked for that in the same call."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from celery_singleton_lock.core.errors import LedgerUnavailable, StoreUnavailable
from celery_singleton_lock.core.models import (
    FINISHED,
    Answer,
    Done,
    Granted,
    Lease,
    LeaseRequest,
    Release,
)
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.queries import Queries

KEY: Final = "ledger:memory"
_FROM_THE_BEGINNING: Final = "from the beginning"
_TTL: Final = timedelta(seconds=5)
_KEEP_FOR: Final = timedelta(days=3650)


class Memory:
    """Of one store. `request` goes along with what an execution asks for, `since` reads the answer."""

    def __init__(self, store: LeaseStore, ledger: Ledger) -> None:
        self._store = store
        self._queries = Queries(ledger)

    def request(self, owner: str) -> LeaseRequest:
        return LeaseRequest(KEY, owner, _TTL, position=FINISHED)

    def since(self, answer: Answer) -> datetime | None:
        """The store may have forgotten what was before this time; None: it has forgotten nothing."""
        match answer:
            case Done(outcome=str(text)) if text != _FROM_THE_BEGINNING:
                return datetime.fromisoformat(text)
            case Done():
                return None
            case Granted(lease):
                try:
                    return self._begin(lease)
                except StoreUnavailable:
                    return datetime.now(UTC)
        # Somebody else is about to find out.
        return datetime.now(UTC)

    def _begin(self, lease: Lease) -> datetime | None:
        """The store is new: to us, who have done nothing yet, or because it was emptied."""
        now = self._store.now()
        try:
            is_ours_new = not self._queries.runs(limit=1).runs
        except LedgerUnavailable:
            # The next one asks again.
            self._store.release([Release(lease, undo=True)])
            return now
        since = None if is_ours_new else now
        outcome = _FROM_THE_BEGINNING if since is None else since.isoformat()
        self._store.release([Release(lease, FINISHED, outcome, _KEEP_FOR)])
        return since
