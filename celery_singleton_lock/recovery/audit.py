"""Who did what to what is kept for people, whatever came of it: one log line for each act and, where
there is a ledger, one row."""

from __future__ import annotations

import getpass
import json
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from celery_singleton_lock.core.errors import SingletonError
from celery_singleton_lock.core.redaction import redact

logger = logging.getLogger("celery_singleton_lock.audit")

LONGEST_NAME: Final = 255


@dataclass(frozen=True, slots=True)
class Act:
    """What somebody did."""

    at: datetime
    who: str
    action: str
    facts: Mapping[str, Any]


def record(action: str, who: str, *, app: Any = None, **facts: object) -> None:
    """`app`: whose ledger it is written to. That is best effort: what was done is done, and a database
    that is away must not look like a failure of it."""
    told = {name: redact(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}
    template = "".join(("%s who=%r", *(f" {name}=%r" for name in told)))
    logger.warning(template, action, who, *told.values())
    if app is None:
        return
    try:
        _write(app, Act(datetime.now(UTC), who, action, told))
    except SingletonError as error:
        logger.warning(
            "audit_not_written action=%s reason=%r: it is in this log only", action, str(error)
        )


def acts_of(
    app: Any,
    *,
    limit: int = 100,
    action: str | None = None,
    who: str | None = None,
    since: datetime | None = None,
) -> list[Act]:
    """What was done, latest first. `action` and `who` may be a part of the name. Raises
    `ConfigurationError` where there is no ledger, or an old one, and `LedgerUnavailable`."""
    import sqlalchemy as sa

    from celery_singleton_lock.ledger import required_ledger_of
    from celery_singleton_lock.ledger.tables import AuditRow

    ledger = required_ledger_of(app)
    ledger.schema.ensure_current()
    wanted = sa.select(AuditRow.at, AuditRow.who, AuditRow.action, AuditRow.facts).where(
        AuditRow.prefix == ledger.prefix
    )
    if action is not None:
        wanted = wanted.where(AuditRow.action.contains(action, autoescape=True))
    if who is not None:
        wanted = wanted.where(AuditRow.who.contains(who, autoescape=True))
    if since is not None:
        wanted = wanted.where(AuditRow.at >= since)
    wanted = wanted.order_by(AuditRow.at.desc(), AuditRow.id.desc()).limit(limit)
    rows = ledger.read(lambda connection: connection.execute(wanted).all())
    return [Act(row.at, row.who, row.action, json.loads(row.facts)) for row in rows]


def _write(app: Any, act: Act) -> None:
    import sqlalchemy as sa

    from celery_singleton_lock.ledger import ledger_of
    from celery_singleton_lock.ledger.tables import AuditRow

    ledger = ledger_of(app)
    if ledger is None:
        return
    row = {
        "prefix": ledger.prefix,
        "at": act.at,
        "who": act.who[:LONGEST_NAME],
        "action": act.action[:LONGEST_NAME],
        "facts": json.dumps(dict(act.facts), default=str),
    }
    ledger.write(lambda connection: connection.execute(sa.insert(AuditRow).values(**row)))


def whoami() -> str:
    """The user of this process and its host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user has a number, and no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
