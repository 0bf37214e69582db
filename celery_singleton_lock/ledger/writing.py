"""Writes history: a batch is a transaction, and a row that is there is weighed against the new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

import sqlalchemy as sa

from .happenings import FIRST, News, Status
from .opening import Ledger
from .tables import AttemptRow, GapRow, LetterRow, RunRow, metadata

_RUNS: Final = metadata.tables[RunRow.__tablename__]
_ATTEMPTS: Final = metadata.tables[AttemptRow.__tablename__]
_LETTERS: Final = metadata.tables[LetterRow.__tablename__]
_GAPS: Final = metadata.tables[GapRow.__tablename__]
_OF_THE_LATER: Final = ("status", "reason", "worker", "ended_at", "error")
_WHOEVER_KNOWS: Final = ("task", "entry", "slot")


def write_news(ledger: Ledger, news: News) -> None:
    """Safe to repeat. Raises `LedgerUnavailable`."""
    prefix = ledger.prefix
    # In one order: two writers that have a run in common wait for each other, and not in a circle.
    runs = [news.runs[each].row(prefix) for each in sorted(news.runs)]
    attempts = [{"prefix": prefix, **each} for each in news.attempts]
    letters = [{"prefix": prefix, **each} for each in news.letters]
    gaps = [{"prefix": prefix, **asdict(each)} for each in news.gaps]
    upsert_all = ledger.database.dialect.upsert_all

    def write(connection: sa.Connection) -> None:
        upsert_all(connection, _RUNS, ("prefix", "run_id"), runs, _weigh)
        upsert_all(connection, _ATTEMPTS, ("prefix", "run_id", "attempt", "fence"), attempts)
        upsert_all(connection, _LETTERS, ("prefix", "letter_id"), letters)
        upsert_all(connection, _GAPS, ("prefix", "replica", "began_at"), gaps)

    ledger.write(write)


def _weigh(new: Any) -> Mapping[str, Any]:
    """By the same rules as `RunUpdate.merged_with`."""
    old = _RUNS.c
    is_later = new.stage >= old.stage
    # Before the status, of which it depends: MySQL makes one change after the other, and weighs by what
    # it has made.
    changes: dict[str, Any] = {
        "duration_s": sa.case(
            (is_later, _kept_by_a_letter(new, old, new.duration_s)),
            else_=_kept_by_a_letter(old, new, old.duration_s),
        )
    }
    changes |= {name: sa.case((is_later, new[name]), else_=old[name]) for name in _OF_THE_LATER}
    changes |= {name: sa.func.coalesce(old[name], new[name]) for name in _WHOEVER_KNOWS}
    changes |= {name: _earlier(old[name], new[name]) for name in (*FIRST, "due_at")}
    changes |= {name: _larger(old[name], new[name]) for name in ("attempt", "fence")}
    # Last, for the same reason.
    changes["stage"] = _larger(old.stage, new.stage)
    return changes


def _kept_by_a_letter(later: Any, earlier: Any, duration: Any) -> Any:
    # PyMySQL joins the rows of a batch, and leaves no place for parameters behind them.
    dead: Any = sa.literal_column(f"'{Status.DEAD}'")
    failed: Any = sa.literal_column(f"'{Status.FAILED}'")
    is_about_it = sa.and_(later.status == dead, earlier.status == failed)
    return sa.case((is_about_it, sa.func.coalesce(duration, earlier.duration_s)), else_=duration)


def _larger(old: Any, new: Any) -> Any:
    return sa.case((new > old, new), else_=old)


def _earlier(old: Any, new: Any) -> Any:
    return sa.case((sa.or_(old.is_(None), new < old), new), else_=old)
