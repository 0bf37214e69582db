"""How the entries of a schedule stand in the store, for people."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_singleton_lock.core.models import Record

from .book import Configured, Defined, Job, Paused, Statement
from .entry import SingletonEntry, entry_from, grid_for
from .plan import as_slot

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EntryState:
    """An entry, as it stands in the store. `last_slot`: up to there all is published."""

    name: str
    task: str
    schedule: str
    is_dynamic: bool
    is_paused: bool
    paused_by: str
    paused_why: str
    last_slot: datetime | None
    next_slot: datetime | None
    due_since: datetime | None = None
    """The oldest slot whose time has come and that is not published yet. None: there is none, or the
    entry is paused, or nobody knows yet how far it is."""
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Contents:
    """All that is said of a schedule, in ``beat_schedule`` and in the book."""

    statements: Sequence[Statement]
    entries: Mapping[str, SingletonEntry]
    """By name, in order."""
    static: Mapping[str, Any]
    unreadable: Sequence[str]
    """Names of added entries that this version does not understand: no replica like this publishes
    them."""

    @classmethod
    def of(cls, app: Any, statements: Sequence[Statement]) -> Contents:
        static = app.conf.beat_schedule
        entries = {name: _given(name, said, app) for name, said in static.items()}
        unreadable = []
        for said in statements:
            if isinstance(said, Defined) and said.name not in static:
                try:
                    entries[said.name] = entry_from(said, app)
                except Exception as error:  # noqa: BLE001 - whatever somebody wrote, the others are shown
                    logger.warning("dynamic_entry_not_understood entry=%r error=%r", said.name, error)
                    unreadable.append(said.name)
        return cls(statements, dict(sorted(entries.items())), static, unreadable)

    @property
    def jobs(self) -> list[Job]:
        return [said for said in self.statements if isinstance(said, Job)]

    @property
    def shadowed(self) -> list[str]:
        """Added entries that are ignored, since ``beat_schedule`` has one of that name."""
        return [
            said.name
            for said in self.statements
            if isinstance(said, Defined) and said.name in self.static
        ]

    def states(self, records: Sequence[Record | None], now: datetime) -> list[EntryState]:
        """`records`: those of the entries, in their order."""
        pauses = {said.name: said for said in self.statements if isinstance(said, Paused)}
        begins: dict[str, datetime] = {}
        for said in self.statements:
            if isinstance(said, Defined | Paused) or (
                isinstance(said, Configured) and said.is_other_grid
            ):
                begins[said.name] = max(begins.get(said.name, said.at), said.at)
        return [
            self._state(entry, record, pauses.get(name), begins.get(name), now)
            for (name, entry), record in zip(self.entries.items(), records, strict=True)
        ]

    def _state(
        self,
        entry: SingletonEntry,
        record: Record | None,
        pause: Paused | None,
        begins: datetime | None,
        now: datetime,
    ) -> EntryState:
        grid = grid_for(entry)
        stopped = pause if pause is not None and pause.is_paused else None
        position = as_slot(record.position) if record and record.position is not None else None
        due = None
        if position is not None and stopped is None:
            # No slot from before it was made, changed or resumed is its own.
            due = grid.next(max(position, begins or position))
        return EntryState(
            entry.name,
            entry.task,
            repr(entry.schedule),
            entry.name not in self.static,
            stopped is not None,
            stopped.by if stopped else "",
            stopped.why if stopped else "",
            position,
            None if stopped else grid.next(max(position or now, now)),
            due if due is not None and due <= now else None,
            tuple(entry.args or ()),
            dict(entry.kwargs or {}),
            dict(entry.options or {}),
        )


def _given(name: str, said: Any, app: Any) -> SingletonEntry:
    if isinstance(said, SingletonEntry):
        return said
    return SingletonEntry(**{"name": name, "app": app, **said})
