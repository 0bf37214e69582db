"""With ``task_always_eager`` there is no broker: a task is executed when the transaction commits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import event
from sqlalchemy.orm import Session, SessionTransaction

_CALLS: Final = "singleton_outbox_calls"

Call = Callable[[], Any]


def on_commit(session: Session, call: Call) -> None:
    """Do it when the outermost transaction is committed; never if it, or a savepoint around the call,
    is rolled back."""
    calls: list[tuple[SessionTransaction | None, Call]] | None = session.info.get(_CALLS)
    if calls is None:
        calls = session.info[_CALLS] = []
        event.listen(session, "after_commit", _after_commit)
        event.listen(session, "after_soft_rollback", _after_rollback)
    if not session.in_transaction():
        # As adding a row would have done; else a rollback would be about nothing.
        session.begin()
    calls.append((session.get_nested_transaction(), call))


def _after_commit(session: Session) -> None:
    calls = session.info[_CALLS]
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        # It is part of what is around it from now on.
        around = savepoint.parent if savepoint.parent and savepoint.parent.nested else None
        calls[:] = [(around if at is savepoint else at, call) for at, call in calls]
        return
    due, calls[:] = list(calls), []
    for _, call in due:
        call()


def _after_rollback(session: Session, ended: SessionTransaction) -> None:
    calls = session.info[_CALLS]
    calls[:] = [(at, call) for at, call in calls if ended.nested and at is not ended]
