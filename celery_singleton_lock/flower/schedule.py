"""The schedule: what is due when, what came of it, and the buttons to pause, resume and trigger."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery_singleton_lock.beat.entry_state import EntryState
from celery_singleton_lock.beat.schedule import Schedule
from celery_singleton_lock.bootstrap import open_schedule

from .asking import NoAnswer
from .handlers import Change, Data, Page, answering, given_text
from .history import Query, RunSeen, stamp
from .paging import Part, part_of

RUNS_IN_STRIP: Final = 24
RUNS_IN_CHART: Final = 120
LATE_AFTER: Final = timedelta(seconds=15)
"""Younger slots are on their way: other replicas wait for their turn, and entries have jitter."""
_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_SHOWN_SCHEDULE: Final = re.compile(r"^<(\w+): (.*?)(?: \(m/h/dM/MY/d\))?>$", re.DOTALL)


class SchedulePage(Page):
    template = "singleton_schedule.html"
    script = "schedule.js"
    tab = "schedule"


class EntryPage(Page):
    template = "singleton_entry.html"
    script = "entry.js"
    tab = "schedule"


class ScheduleData(Data):
    @answering
    async def get(self) -> None:
        seen = await self.desk.schedule.get()
        late = {entry.name for entry in seen.entries if is_late(entry, seen.now)}
        wanted = _FILTERS.get(self.text("show"), _all)
        search = self.text("search").strip().lower()
        entries = [entry for entry in seen.entries if wanted(entry, late) and _mentions(entry, search)]
        if self.text("sort") == "next":
            entries.sort(key=lambda entry: (entry.next_slot or _NEVER, entry.name))
        part = part_of(entries, self.number("page", 1, least=1), self.size())
        runs, about = await self._runs_of([entry.name for entry in part.rows])
        following = min((entry.next_slot for entry in seen.entries if entry.next_slot), default=None)
        self.send(
            {
                "now": stamp(seen.now),
                "entries": len(seen.entries),
                "paused": sum(entry.is_paused for entry in seen.entries),
                "late": len(late),
                "next": stamp(following),
                "replicas": seen.replicas,
                "jobs": len(seen.jobs),
                "history": about,
                **_part(part, seen.now, runs),
            }
        )

    async def _runs_of(self, entries: Sequence[str]) -> tuple[Mapping[str, Sequence[RunSeen]], str]:
        """And what is to be said of them. Without its past the schedule is of use, too."""
        history = self.desk.history
        try:
            return await history.latest(entries, RUNS_IN_STRIP), history.about()
        except NoAnswer as error:
            return {}, f"The history of runs cannot be read: {error}"


class EntryData(Data):
    @answering
    async def get(self) -> None:
        name = self.text("name")
        seen = await self.desk.schedule.get()
        found = await self.desk.history.find(Query(entry=name, limit=RUNS_IN_CHART))
        entry = next((each for each in seen.entries if each.name == name), None)
        self.send(
            {
                "now": stamp(seen.now),
                "entry": entry and as_json(entry, seen.now, found.runs[:RUNS_IN_STRIP][::-1]),
                "jobs": [
                    {"kind": job.kind, "at": stamp(job.at), "by": job.by}
                    for job in seen.jobs
                    if job.entry == name
                ],
                "runs": [run.as_json() for run in found.runs],
                "history": self.desk.history.about(),
            }
        )


def _part(
    part: Part[EntryState], now: datetime, runs: Mapping[str, Sequence[RunSeen]]
) -> dict[str, Any]:
    rows = [as_json(entry, now, runs.get(entry.name, ())) for entry in part.rows]
    return {**part.as_json(), "rows": rows}


def as_json(entry: EntryState, now: datetime, runs: Sequence[RunSeen]) -> dict[str, Any]:
    return {
        "name": entry.name,
        "task": entry.task,
        "schedule": shown_schedule(entry.schedule),
        "is_dynamic": entry.is_dynamic,
        "is_paused": entry.is_paused,
        "paused_by": entry.paused_by,
        "paused_why": entry.paused_why,
        "next": stamp(entry.next_slot),
        "last": stamp(entry.last_slot),
        "late": _late_s(entry, now),
        "runs": [run.as_json() for run in runs],
    }


def shown_schedule(schedule: str) -> str:
    """Without what is the same for all of its kind: ``<crontab: 5 4 * * * (m/h/dM/MY/d)>``."""
    found = _SHOWN_SCHEDULE.match(schedule)
    if found is None:
        return schedule
    kind, text = found.groups()
    return {"freq": f"every {text.replace('.00 ', ' ')}", "once": f"once, {text}"}.get(kind, text)


def is_late(entry: EntryState, now: datetime) -> bool:
    return _late_s(entry, now) is not None


def _late_s(entry: EntryState, now: datetime) -> float | None:
    """For how long a slot is due that nobody has published; None if there is none, or it is paused."""
    if entry.is_paused or entry.due_since is None or now - entry.due_since < LATE_AFTER:
        return None
    return (now - entry.due_since).total_seconds()


def _all(_entry: EntryState, _late: set[str]) -> bool:
    return True


_FILTERS: Final[dict[str, Callable[[EntryState, set[str]], bool]]] = {
    "late": lambda entry, late: entry.name in late,
    "paused": lambda entry, _: entry.is_paused,
    "added": lambda entry, _: entry.is_dynamic,
}


def _mentions(entry: EntryState, search: str) -> bool:
    return search in entry.name.lower() or search in entry.task.lower()


class ScheduleChange(Change):
    async def change(self, asked: dict[str, Any]) -> dict[str, Any]:
        name, why = given_text(asked, "entry"), given_text(asked, "why", required=False)

        def make() -> str:
            return self.make(open_schedule(self.desk.app, by=self.who), name, why)

        message = await self.do(make)
        self.desk.schedule.forget()
        return {"message": message}

    def make(self, schedule: Schedule, name: str, why: str) -> str:
        """The change; returns what is told of it."""
        raise NotImplementedError


class Pause(ScheduleChange):
    def make(self, schedule: Schedule, name: str, why: str) -> str:
        schedule.pause(name, why)
        return f"{name} is paused."


class Resume(ScheduleChange):
    def make(self, schedule: Schedule, name: str, why: str) -> str:
        schedule.resume(name, why)
        return f"{name} goes on, from its next slot."


class Trigger(ScheduleChange):
    def make(self, schedule: Schedule, name: str, why: str) -> str:
        run = schedule.trigger(name, why=why)
        waits = "" if schedule.replicas() else " No beat is running: it waits for one."
        return f"{name} runs now, as {run}.{waits}"
