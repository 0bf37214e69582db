"""Checks of the ledger."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from celery_singleton_lock.core.errors import LedgerOutdated, LedgerUnavailable
from celery_singleton_lock.ledger.queries import Queries

from .findings import Trouble, check, problem, some, warning
from .patient import Patient

LOOKED_BACK: Final = timedelta(days=1)


@check("ledger-answers")
def ledger_answers(patient: Patient) -> Iterator[Trouble]:
    """The database of the ledger answers."""
    try:
        patient.ledger.schema.current()
    except LedgerUnavailable as error:
        yield problem(
            f"{error}. Runs go on; what rests on the ledger waits",
            "start it, or correct singleton_database_url",
        )


@check("ledger-schema")
def ledger_has_the_tables_of_this_version(patient: Patient) -> Iterator[Trouble]:
    """The tables of the ledger are those of this version."""
    try:
        patient.ledger.schema.ensure_current()
    except LedgerOutdated as error:
        yield problem(str(error), "celery -A app singleton db upgrade, before the new release starts")


@check("history-complete")
def history_is_complete(patient: Patient) -> Iterator[Trouble]:
    """History of the last day lacks nothing."""
    gaps = Queries(patient.ledger).gaps(datetime.now(UTC) - LOOKED_BACK)
    if gaps:
        facts, replicas = sum(each.facts for each in gaps), {each.replica for each in gaps}
        began, ended = min(each.began_at for each in gaps), max(each.ended_at for each in gaps)
        yield warning(
            f"{facts} facts were lost from {began:%Y-%m-%d %H:%M:%S} to {ended:%Y-%m-%d %H:%M:%S} UTC, "
            f"in {some(sorted(replicas))}: the database was away for longer than they could wait",
            "see history_trouble_began in their logs. Runs went on; some are shown as they were before",
        )
