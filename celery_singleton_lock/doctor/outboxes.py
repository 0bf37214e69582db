"""Checks of the outbox."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Final

from celery_singleton_lock.core.errors import ConfigurationError, LedgerUnavailable
from celery_singleton_lock.recovery.outbox.reading import Outbox

from .findings import NotApplicable, Trouble, check, problem, warning
from .patient import Patient

LATE: Final = timedelta(minutes=1)


@check("outbox-relayed")
def outbox_is_relayed(patient: Patient) -> Iterator[Trouble]:
    """What is in the outbox is published."""
    if patient.settings.outbox_database is None:
        raise NotApplicable("there is no outbox: singleton_outbox_url is not set")
    outbox = Outbox(patient.settings)
    try:
        status = outbox.status()
    except LedgerUnavailable as error:
        yield problem(str(error), "start it, or correct singleton_outbox_url")
        return
    except ConfigurationError as error:
        yield problem(str(error), "make the tables; nothing can be sent to the outbox before")
        return
    finally:
        outbox.close()
    if status.pending and status.oldest is not None and status.oldest > LATE:
        yield problem(
            f"{status.pending} rows wait, the oldest for {status.oldest.total_seconds():.0f} s",
            "start beat with SingletonScheduler, or celery -A app singleton outbox relay; see its log",
        )
    if status.held:
        yield warning(
            f"{status.held} rows are refused by the broker, and hold up those of their keys",
            "celery -A app singleton outbox list --state held, for the errors",
        )
