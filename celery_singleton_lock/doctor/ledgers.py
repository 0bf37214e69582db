"""Checks of the ledger."""

from __future__ import annotations

from collections.abc import Iterator

from celery_singleton_lock.core.errors import LedgerOutdated, LedgerUnavailable

from .findings import Trouble, check, problem
from .patient import Patient


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
