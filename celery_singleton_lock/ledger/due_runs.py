"""Runs that are shown as due, and are not any more, though nobody told what became of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Final

import sqlalchemy as sa

from .happenings import Status
from .opening import Ledger
from .tables import RunRow

MOST: Final = 1000


def forget_due(ledger: Ledger, is_over: Callable[[str, datetime], bool]) -> int:
    """Remove those of which `is_over`, given entry and slot, says so; return how many. Whatever is told
    of one later is written as of any other. Raises `LedgerUnavailable`."""
    is_due = RunRow.prefix == ledger.prefix, RunRow.status == Status.DUE.value
    query = sa.select(RunRow.id, RunRow.entry, RunRow.slot).where(*is_due).limit(MOST)

    def forget(connection: sa.Connection) -> int:
        rows = connection.execute(query).all()
        over = [row.id for row in rows if row.entry and row.slot and is_over(row.entry, row.slot)]
        # Asked once more: it may have been published meanwhile.
        return connection.execute(
            sa.delete(RunRow).where(RunRow.id.in_(over), RunRow.status == Status.DUE.value)
        ).rowcount

    return ledger.write(forget)
