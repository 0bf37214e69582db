"""What is printed of an entry, for people and for machines."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from celery_singleton_lock.cli.printing import Shade, print_json, printable
from celery_singleton_lock.cli.times import ago, clock, iso, spoken

if TYPE_CHECKING:
    from celery_singleton_lock.beat.book import Job
    from celery_singleton_lock.beat.entry_state import EntryState
    from celery_singleton_lock.beat.schedule import Schedule

LATE: Final = timedelta(seconds=15)
"""Below this an entry is on its way: beat takes a moment, and a slot may be put off."""
_FREQUENCY: Final = re.compile(r"<freq: ([\d.]+) (seconds?|minutes?|hours?|days?)>")
_SECONDS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}

TITLES: Final = ("ENTRY", "STATE", "NEXT", "LAST SLOT", "SCHEDULE", "TASK", "FROM")


def row_of(entry: EntryState, now: datetime) -> tuple[object, ...]:
    return (
        entry.name,
        state_of(entry, now),
        ago(entry.next_slot, now),
        ago(entry.last_slot, now),
        spoken_schedule(entry),
        entry.task,
        "added" if entry.is_dynamic else "config",
    )


def spoken_schedule(entry: EntryState) -> str:
    """Celery's words for it, without the noise, so that it fits."""
    frequency = _FREQUENCY.fullmatch(entry.schedule)
    if frequency:
        return f"every {spoken(float(frequency[1]) * _SECONDS[frequency[2].rstrip('s')])}"
    return entry.schedule.strip("<>").removeprefix("crontab: ").removesuffix(" (m/h/dM/MY/d)")


def state_of(entry: EntryState, now: datetime) -> Shade:
    if entry.is_paused:
        return Shade("paused", "cyan")
    if is_late(entry, now):
        return Shade(f"late {ago(entry.due_since, now).removesuffix(' ago')}", "red")
    if entry.next_slot is None:
        return Shade("over", "dim")
    return Shade("new", "yellow") if entry.last_slot is None else Shade("active", "green")


def is_late(entry: EntryState, now: datetime) -> bool:
    return entry.due_since is not None and now - entry.due_since > LATE


def facts_of(entry: EntryState) -> dict[str, Any]:
    """For JSON: keys may be added, and none is renamed."""
    return {
        "name": entry.name,
        "task": entry.task,
        "schedule": entry.schedule,
        "is_dynamic": entry.is_dynamic,
        "is_paused": entry.is_paused,
        "paused_by": entry.paused_by,
        "paused_why": entry.paused_why,
        "last_slot": iso(entry.last_slot),
        "next_slot": iso(entry.next_slot),
        "due_since": iso(entry.due_since),
        "args": list(entry.args),
        "kwargs": dict(entry.kwargs),
        "options": dict(entry.options),
    }


def job_facts(job: Job) -> dict[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "entry": job.entry,
        "by": job.by,
        "at": iso(job.at),
        "start": iso(job.start),
        "end": iso(job.end),
    }


def tell(text: str, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
    else:
        click.echo(printable(text))


def tell_entry(context: click.Context, done: str, name: str, as_json: bool) -> None:
    schedule = schedule_of(context)
    entry, now = schedule.entry(name), now_of(context)
    next_slot = f"{clock(entry.next_slot)}, {ago(entry.next_slot, now)}"
    text = f"{done} {name}: {spoken_schedule(entry)}, next at {next_slot}."
    tell(text, {done.lower(): facts_of(entry)}, as_json)
    warn_without_beat(schedule)


def warn_without_beat(schedule: Schedule) -> None:
    if not schedule.replicas():
        click.echo("Note: no replica of beat is alive. It is done when one starts.", err=True)


def schedule_of(context: click.Context) -> Schedule:
    from celery_singleton_lock.bootstrap import open_schedule

    return open_schedule(context.obj.app)


def now_of(context: click.Context) -> datetime:
    from celery_singleton_lock.worker.parts import parts_of

    return parts_of(context.obj.app).store.now()
