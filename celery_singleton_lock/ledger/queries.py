"""Questions that people have about history. Each is answered from an index, however long history is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any, Final

import sqlalchemy as sa

from celery_singleton_lock.core.errors import ConfigurationError

from .happenings import Status
from .losses import Gap
from .opening import Ledger
from .tables import AttemptRow, GapRow, LetterRow, RunRow, metadata

_OF_UUIDS: Final = frozenset("0123456789abcdef-")

ENTRIES_AT_ONCE: Final = 100
"""More parts than these are too many for one statement of SQLite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """What history knows of a run. The page of the ledger explains each."""

    id: int
    run_id: str
    task: str | None
    entry: str | None
    slot: datetime | None
    due_at: datetime
    status: Status
    reason: str | None
    attempt: int
    fence: int
    worker: str | None
    published_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    lag_s: float | None
    duration_s: float | None
    error: str | None

    @property
    def cursor(self) -> str:
        """To go on after this one, see `Filter.after`."""
        return f"{self.due_at.isoformat()}/{self.id}"

    @property
    def facts(self) -> dict[str, Any]:
        """For machines: times as ISO 8601 in UTC."""
        values = asdict(self)
        del values["id"]
        return {name: _plain(value) for name, value in values.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class PastAttempt:
    """One execution of a run: how it ended, and why."""

    run_id: str
    attempt: int
    fence: int
    outcome: str
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    duration_s: float | None
    error: str | None

    @property
    def facts(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which runs. Times are about `due_at`: the slot, or when the run was first heard of."""

    entry: str | None = None
    task: str | None = None
    statuses: Sequence[Status] = ()
    ended_once: str | None = None
    """An execution of it ended with this outcome, whatever came of the run."""
    since: datetime | None = None
    until: datetime | None = None
    after: str | None = None
    """The `cursor` of the last run of the page before."""

    def conditions(self) -> list[sa.ColumnElement[bool]]:
        found: list[sa.ColumnElement[bool]] = []
        if self.entry is not None:
            found.append(RunRow.entry == self.entry)
        if self.task is not None:
            found.append(RunRow.task == self.task)
        if self.statuses:
            found.append(RunRow.status.in_([each.value for each in self.statuses]))
        if self.ended_once is not None:
            found.append(
                sa.exists().where(
                    AttemptRow.prefix == RunRow.prefix,
                    AttemptRow.run_id == RunRow.run_id,
                    AttemptRow.outcome == self.ended_once,
                )
            )
        if self.since is not None:
            found.append(RunRow.due_at >= self.since)
        if self.until is not None:
            found.append(RunRow.due_at < self.until)
        return found


@dataclass(frozen=True, slots=True)
class Page:
    runs: tuple[PastRun, ...]
    next: str | None = None
    """The `Filter.after` of the page that follows; None: this is the last."""


_FIELDS: Final = tuple(each.name for each in fields(PastRun))
COLUMNS: Final = [getattr(RunRow, name) for name in _FIELDS]
_TYPED: Final = [metadata.tables[RunRow.__tablename__].c[name] for name in _FIELDS]
_NAMES: Final = ", ".join(_FIELDS)
_LAST: Final = (
    "SELECT {columns} FROM singleton_runs WHERE prefix = :prefix AND singleton_runs.entry = {entry} "
    "ORDER BY due_at DESC, id DESC LIMIT :each"
)
_JOIN: Final = (
    "SELECT part.* FROM unnest(CAST(:entries AS text[])) AS wanted (entry) "
    "CROSS JOIN LATERAL ({last}) AS part"
)
NEWEST_FIRST: Final = (RunRow.due_at.desc(), RunRow.id.desc())


@dataclass(frozen=True, slots=True)
class Queries:
    ledger: Ledger
    _mine: sa.ColumnElement[bool] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_mine", RunRow.prefix == self.ledger.prefix)

    def runs(self, which: Filter | None = None, *, limit: int = 50) -> Page:
        """Newest first. Costs the same for every page: each begins where the one before has ended."""
        which = which or Filter()
        query = sa.select(*COLUMNS).where(self._mine, *which.conditions())
        if which.after is not None:
            due_at, number = read_cursor(which.after)
            # The first part alone would do to find the place in the index.
            query = query.where(
                RunRow.due_at <= due_at,
                sa.or_(RunRow.due_at < due_at, RunRow.id < number),
            )
        found = self.read(query.order_by(*NEWEST_FIRST).limit(limit + 1))
        more = len(found) > limit
        return Page(tuple(found[:limit]), found[limit - 1].cursor if more else None)

    def run(self, run_id: str) -> PastRun | None:
        found = self.read(sa.select(*COLUMNS).where(self._mine, RunRow.run_id == run_id))
        return found[0] if found else None

    def ids_beginning_with(self, text: str, *, limit: int = 2) -> list[str]:
        """Of runs. Only for what may be the beginning of a uuid; none for others."""
        if not text or not set(text) <= _OF_UUIDS:
            return []
        # A range, which every database finds in the index whatever its collation is.
        query = (
            sa.select(RunRow.run_id)
            .where(self._mine, RunRow.run_id >= text, RunRow.run_id <= f"{text}g")
            .limit(limit)
        )
        found = self.ledger.read(lambda connection: connection.scalars(query).all())
        return [each for each in found if each.startswith(text)]

    def attempts(self, run_id: str) -> list[PastAttempt]:
        """The executions of a run that are over, oldest first; none where its only one succeeded."""
        columns = [getattr(AttemptRow, each.name) for each in fields(PastAttempt)]
        query = (
            sa.select(*columns)
            .where(AttemptRow.prefix == self.ledger.prefix, AttemptRow.run_id == run_id)
            .order_by(AttemptRow.attempt, AttemptRow.fence)
        )
        rows = self.ledger.read(lambda connection: connection.execute(query).mappings().all())
        return [PastAttempt(**row) for row in rows]

    def missed(self, which: Filter | None = None, *, limit: int = 50) -> Page:
        """Slots that were not published, and will not be unless somebody backfills them."""
        which = which or Filter()
        return self.runs(
            Filter(
                entry=which.entry,
                task=which.task,
                statuses=(Status.MISSED,),
                since=which.since,
                until=which.until,
                after=which.after,
            ),
            limit=limit,
        )

    def slowest(self, which: Filter | None = None, *, limit: int = 50) -> list[PastRun]:
        """Those that took longest, longest first."""
        query = (
            sa.select(*COLUMNS)
            .where(self._mine, RunRow.duration_s.is_not(None), *(which or Filter()).conditions())
            .order_by(RunRow.duration_s.desc(), RunRow.id.desc())
            .limit(limit)
        )
        return self.read(query)

    def last_of(self, entries: Iterable[str], each: int = 20) -> dict[str, list[PastRun]]:
        """The last runs of each of these entries, newest first: one query for a hundred entries."""
        names = list(dict.fromkeys(entries))
        found: dict[str, list[PastRun]] = {name: [] for name in names}
        for start in range(0, len(names), ENTRIES_AT_ONCE):
            for run in self.read(self._last_of(names[start : start + ENTRIES_AT_ONCE], each)):
                found[run.entry or ""].append(run)
        for runs in found.values():
            runs.sort(key=lambda run: (run.due_at, run.id), reverse=True)
        return found

    def _last_of(self, entries: Sequence[str], each: int) -> Any:
        # As text: to make a hundred queries of objects takes longer than to answer them.
        if self.ledger.database.dialect.name == "postgresql":
            # Not so elsewhere: SQLite and MariaDB have no such joins.
            named: dict[str, Any] = {"entries": list(entries)}
            text = _JOIN.format(last=_LAST.format(columns=_NAMES, entry="wanted.entry"))
        else:
            named = {f"entry_{at}": name for at, name in enumerate(entries)}
            parts = (_LAST.format(columns=_NAMES, entry=f":{name}") for name in named)
            whole = (f"SELECT * FROM ({part}) AS part" for part in parts)  # nosec B608 # noqa: S608 - ours, all of it
            text = " UNION ALL ".join(whole)
        query = sa.text(text).columns(*_TYPED)
        return query.bindparams(prefix=self.ledger.prefix, each=each, **named)

    def counts(self, since: datetime) -> dict[Status, int]:
        """How many runs that were due since then stand where."""
        query = (
            sa.select(RunRow.status, sa.func.count())
            .where(self._mine, RunRow.due_at >= since)
            .group_by(RunRow.status)
        )
        rows = self.ledger.read(lambda connection: connection.execute(query).all())
        return {Status(status): count for status, count in rows}

    def letters(self, run_id: str | None = None, *, limit: int = 50) -> list[Mapping[str, Any]]:
        """What went to the dead letters, of one run or of all, newest first; also letters that are gone
        by now."""
        table = LetterRow
        columns = (
            table.letter_id, table.run_id, table.task, table.reason, table.error, table.dead_at,
        )  # fmt: skip
        query = sa.select(*columns).where(table.prefix == self.ledger.prefix)
        if run_id is not None:
            query = query.where(table.run_id == run_id)
        query = query.order_by(table.dead_at.desc(), table.id.desc()).limit(limit)
        rows = self.ledger.read(lambda connection: connection.execute(query).mappings().all())
        return [{name: _plain(value) for name, value in row.items()} for row in rows]

    def gaps(self, since: datetime) -> list[Gap]:
        """What history lacks since then, oldest first; empty: nothing that anybody knows of. What a
        process that was killed had in hand is not among it."""
        columns = GapRow.replica, GapRow.began_at, GapRow.ended_at, GapRow.facts
        query = (
            sa.select(*columns)
            .where(GapRow.prefix == self.ledger.prefix, GapRow.ended_at >= since)
            .order_by(GapRow.ended_at, GapRow.id)
        )
        return [Gap(*row) for row in self.ledger.read(lambda c: c.execute(query).all())]

    def read(self, query: Any) -> list[PastRun]:
        """`query` has `COLUMNS`, in that order."""
        rows = self.ledger.read(lambda connection: connection.execute(query).all())
        # By the place of a value: by its name takes as long as all the rest.
        return [_past(dict(zip(_FIELDS, row, strict=True))) for row in rows]


def _past(values: dict[str, Any]) -> PastRun:
    values["status"] = Status(values["status"])
    return PastRun(**values)


def read_cursor(text: str) -> tuple[datetime, int]:
    moment, _, number = text.rpartition("/")
    try:
        return datetime.fromisoformat(moment), int(number)
    except ValueError:
        raise ConfigurationError(f"{text!r} is no place in history: take `next` of a page") from None


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
