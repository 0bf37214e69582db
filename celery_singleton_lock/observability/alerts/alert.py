"""From facts to what people are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Literal

from celery_singleton_lock.core import facts

Severity = Literal["critical", "error", "warning", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    kind: str
    about: str
    """Which trouble it is: another alert with the same is about the same one."""
    severity: Severity
    summary: str
    at: datetime
    details: Mapping[str, Any]
    is_over: bool = False
    more: int = 0
    """So many others of its kind came with it, and are not sent."""

    def with_more(self, more: int) -> Alert:
        return replace(self, more=more, summary=f"{self.summary} (and {more} more like it)")


def alert_of(fact: facts.Fact) -> Alert | None:
    """None: nobody needs to be told."""
    match fact:
        case facts.SlotMissed(run=run, reason=reason):
            slot = run.slot.isoformat() if run.slot else None
            return _about_run(
                "slot_missed", "error", run, fact.at,
                f"A slot of {run.entry!r} was missed: {slot}, {reason}", reason=reason,
            )  # fmt: skip
        case facts.DeadLettered(run=run, reason=reason, letter=letter):
            said = {"reason": reason, "letter": letter.get("id"), "exception": letter.get("exception")}
            text = f"A run of {run.task!r} is a dead letter: {reason}" if run else (
                f"A message is a dead letter: {reason}"
            )  # fmt: skip
            return _about_run("dead_lettered", "error", run, fact.at, text, **said)
        case facts.LeaseMayBeLost(run=run, key=key, fence=fence, worker=worker):
            return _about_run(
                "lease_lost", "warning", run, fact.at, f"A run of {run.task!r} may have lost its lease",
                key=key, fence=fence, worker=worker,
            )  # fmt: skip
        case facts.RunOverdue(run=run, expected=expected, worker=worker):
            seconds = expected.total_seconds()
            return _about_run(
                "overdue", "warning", run, fact.at,
                f"A run of {run.task!r} takes longer than {seconds:g} s", worker=worker,
            )  # fmt: skip
        case facts.RunSkipped(run=run, reason=reason, by=by):
            return _about_run(
                "skipped", "info", run, fact.at, f"A run of {run.task!r} was skipped: {reason}",
                reason=reason, by=by,
            )  # fmt: skip
        case facts.TroubleBegan(part=part, reason=reason):
            return Alert(
                kind="trouble", about=f"trouble:{part}", severity="critical", at=fact.at,
                summary=f"Beat waits for the {part}: {reason}",
                details={"part": part, "reason": reason},
            )  # fmt: skip
        case facts.TroubleEnded(part=part):
            return Alert(
                kind="trouble", about=f"trouble:{part}", severity="info", at=fact.at, is_over=True,
                summary=f"Beat waits no more for the {part}", details={"part": part},
            )  # fmt: skip
    return None


def _about_run(
    kind: str,
    severity: Severity,
    run: facts.RunName | None,
    at: datetime,
    summary: str,
    **details: Any,
) -> Alert:
    if run is not None:
        slot = run.slot.isoformat() if run.slot else None
        details = {"run": run.id, "task": run.task, "entry": run.entry, "slot": slot, **details}
    known = {name: value for name, value in details.items() if value is not None}
    about = f"{kind}:{run.id}" if run is not None else f"{kind}:{details.get('letter')}"
    return Alert(kind=kind, about=about, severity=severity, summary=summary, at=at, details=known)
