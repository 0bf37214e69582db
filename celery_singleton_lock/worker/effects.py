"""Effects that happen exactly once: the user's rows and the end of the run in one transaction."""

from __future__ import annotations

import json
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import sqlalchemy as sa

from celery_singleton_lock.core.errors import ConfigurationError, LeaseLost
from celery_singleton_lock.ledger import Ledger
from celery_singleton_lock.ledger.claims import Claim, Claims
from celery_singleton_lock.ledger.tables import LedgerRow

from .run import Ask

if TYPE_CHECKING:
    from .current_run import Run


@dataclass(frozen=True, slots=True)
class Effects:
    """Where, and for what, effects are committed."""

    ledger: Ledger
    ask: Ask


class Transaction:
    """Made by `Run.transaction`. With ``async with`` for an AsyncSession."""

    def __init__(self, run: Run, effects: Effects | None, session: Any, result: Any) -> None:
        """`effects` None: a run without a lock, of a test; then it is a plain transaction."""
        self._run = run
        self._effects = effects
        self._session = session
        try:
            self._result = json.dumps(result)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"the result of a transaction must be JSON: {error}") from None

    def __enter__(self) -> Self:
        self._begin(self._session)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is not None:
            self._session.rollback()
            return
        try:
            self._finish(self._session)
            self._session.commit()
        except BaseException:
            self._session.rollback()
            raise
        self._run.is_committed = True

    async def __aenter__(self) -> Self:
        await self._session.run_sync(self._begin)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if error is not None:
            await self._session.rollback()
            return
        try:
            await self._session.run_sync(self._finish)
            await self._session.commit()
        except BaseException:
            await self._session.rollback()
            raise
        self._run.is_committed = True

    def _begin(self, session: Any) -> None:
        if self._run.is_committed:
            raise ConfigurationError(
                f"run {self._run.id} has committed its transaction, and is finished by that: put all "
                "that belongs together into one"
            )
        if self._effects is not None:
            _ensure_same_database(session, self._effects.ledger)

    def _finish(self, session: Any) -> None:
        # What the user has done goes first: the claims' rows are locked until the commit.
        session.flush()
        if self._effects is None:
            return
        # A look at our own clock saves the way to the database. What counts is what that says.
        self._run.ensure_held()
        claims, ask, connection = Claims(self._effects.ledger), self._effects.ask, session.connection()
        fences = self._run.fences
        if ask.task_key is not None and fences.task:
            job = Claim(key=ask.task_key, owner=ask.owner, fence=fences.task, position=0)
            if not claims.pass_by(connection, job):
                raise LeaseLost(ask.task_key, fences.task)
        run = Claim(key=ask.run_key, owner=ask.owner, fence=fences.run, position=ask.position)
        if not claims.finish(connection, run, self._result):
            raise LeaseLost(ask.run_key, fences.run)


_known: Final[weakref.WeakKeyDictionary[sa.Engine, str]] = weakref.WeakKeyDictionary()
"""Which ledger is behind an engine."""


def _ensure_same_database(session: Any, ledger: Ledger) -> None:
    connection = session.connection()
    engine = connection.engine
    if engine not in _known:
        _known[engine] = _name_behind(connection)
    if _known[engine] != _ledgers_name(ledger):
        del _known[engine]
        raise ConfigurationError(
            f"the session is not on the database of the ledger, {ledger.name}: effects and the end of "
            "the run can be committed together only in one database. Set singleton_database_url to "
            "that of the session, and run `celery -A app singleton db upgrade`"
        )


def _name_behind(connection: sa.Connection) -> str:
    if not sa.inspect(connection).has_table(LedgerRow.__tablename__):
        return ""
    return connection.scalar(sa.select(LedgerRow.name)) or ""


def _ledgers_name(ledger: Ledger) -> str:
    engine = ledger.database.engine
    if engine not in _known:
        _known[engine] = ledger.read(_name_behind)
    return _known[engine]
