"""Runs the checks. One that breaks never hides another."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final

from celery_singleton_lock.core.errors import SingletonError
from celery_singleton_lock.core.redaction import redact

from .findings import Check, Finding, Level, NotApplicable, all_checks
from .patient import Patient

TOPICS: Final = (
    "configuration",
    "stores",
    "brokers",
    "beats",
    "entries",
    "tasks",
    "workers",
    "runs",
    "ledgers",
    "outboxes",
)
"""Each registers its checks when it is imported: in the order in which people should read them."""


def strangers(names: Collection[str]) -> list[str]:
    """Those with which the name of no check begins."""
    _import_topics()
    return [name for name in names if not any(each.name.startswith(name) for each in all_checks())]


def examine(
    app: Any,
    *,
    only: Collection[str] = (),
    on_check: Callable[[Check], None] | None = None,
    patience: float = 1.0,
) -> Iterator[Finding]:
    """What is found, check by check, as it is found: at least one finding each.

    `only`: checks whose name begins with one of these. `on_check` is told what is looked at next.
    `patience`: how many seconds to wait for the answers of workers, each time they are asked.
    """
    _import_topics()
    patient = Patient(app, patience=patience)
    try:
        for each in all_checks():
            if only and not each.name.startswith(tuple(only)):
                continue
            if on_check is not None:
                on_check(each)
            yield from _findings(each, patient)
    finally:
        patient.close()


def _import_topics() -> None:
    for topic in TOPICS:
        importlib.import_module(f".{topic}", __package__)


def _findings(check: Check, patient: Patient) -> Iterator[Finding]:
    found = False
    try:
        for trouble in check.diagnose(patient):
            found = True
            reason, remedy = redact(trouble.reason), redact(trouble.remedy)
            yield Finding(check.name, trouble.level, reason, remedy, check.title)
    except NotApplicable as why:
        if not found:
            yield Finding(check.name, Level.NOT_APPLICABLE, str(why), title=check.title)
    except SingletonError as error:
        yield _unknown(check, str(error))
    except Exception as error:  # noqa: BLE001 - a bug in one check must not cost the others
        yield _unknown(check, f"{type(error).__name__}: {error}")
    else:
        if not found:
            yield Finding(check.name, Level.OK, title=check.title)


def _unknown(check: Check, reason: str) -> Finding:
    remedy = "see what is said of the store, the broker and the settings, and look again"
    return Finding(check.name, Level.UNKNOWN, redact(reason), remedy, check.title)
