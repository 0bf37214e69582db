"""``schedule list`` and ``show``: parse, call, print."""

from __future__ import annotations

import fnmatch
import json
from typing import Final

import click

from celery_singleton_lock.cli import options
from celery_singleton_lock.cli.failing import telling_errors
from celery_singleton_lock.cli.printing import print_facts, print_json, print_table
from celery_singleton_lock.cli.times import ago, clock, iso

from .telling import (
    TITLES,
    facts_of,
    is_late,
    job_facts,
    now_of,
    row_of,
    schedule_of,
    spoken_schedule,
    state_of,
)

SHOWN_BY_DEFAULT: Final = 200


@click.command("list")
@click.argument("pattern", default="*")
@click.option("--task", metavar="NAME", help="Only entries of this task.")
@click.option("--paused", is_flag=True, help="Only entries that are paused.")
@click.option(
    "--late", is_flag=True, help="Only entries that have a slot which is due and not published."
)
@options.limit(SHOWN_BY_DEFAULT)
@options.as_json
@click.pass_context
@telling_errors
def list_entries(
    context: click.Context,
    pattern: str,
    task: str | None,
    paused: bool,
    late: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Show the entries, by name. PATTERN: only names like that, say `report*`."""
    schedule = schedule_of(context)
    now = now_of(context)
    found = [
        entry
        for entry in schedule.entries()
        if fnmatch.fnmatchcase(entry.name, pattern)
        and task in (None, entry.task)
        and (entry.is_paused or not paused)
        and (is_late(entry, now) or not late)
    ]
    replicas, jobs = schedule.replicas(), schedule.jobs()
    shown = found[:limit]
    if as_json:
        print_json(
            {
                "now": iso(now),
                "replicas": replicas,
                "total": len(found),
                "entries": [facts_of(entry) for entry in shown],
                "jobs": [job_facts(job) for job in jobs],
            }
        )
        return
    print_table(TITLES, [row_of(entry, now) for entry in shown])
    _tell_the_rest(len(found), limit, replicas, len(jobs), context)


def _tell_the_rest(
    found: int, limit: int, replicas: list[str], jobs: int, context: click.Context
) -> None:
    if not found:
        click.echo("No entries.", err=True)
    elif found > limit:
        click.echo(f"These are {limit} of {found}: see --limit, or give a pattern.", err=True)
    if jobs:
        what = "1 trigger or backfill is" if jobs == 1 else f"{jobs} triggers and backfills are"
        click.echo(f"{what} not done yet: see schedule jobs.", err=True)
    if not replicas:
        click.echo("No replica of beat is alive: nothing is published.", err=True)
    if "django" in str(context.obj.app.conf.beat_scheduler):
        click.echo("Entries of the Django admin are not shown here.", err=True)


@click.command("show")
@click.argument("name")
@click.option(
    "--slots",
    type=click.IntRange(0, 10_000),
    default=5,
    show_default=True,
    help="How many slots to tell.",
)
@options.as_json
@click.pass_context
@telling_errors
def show_entry(context: click.Context, name: str, slots: int, as_json: bool) -> None:
    """Show one entry, and when it is due next."""
    schedule = schedule_of(context)
    entry, now = schedule.entry(name), now_of(context)
    coming = schedule.next_slots(name, slots)
    jobs = [job for job in schedule.jobs() if job.entry == name]
    if as_json:
        told = {"next_slots": [iso(slot) for slot in coming], "jobs": [job_facts(job) for job in jobs]}
        print_json({"now": iso(now), **facts_of(entry), **told})
        return
    zone = context.obj.app.timezone
    state: list[tuple[str, object]] = [
        ("entry", entry.name),
        ("task", entry.task),
        ("schedule", spoken_schedule(entry)),
        ("from", "added at run time" if entry.is_dynamic else "beat_schedule"),
        ("state", state_of(entry, now)),
        ("args", json.dumps(list(entry.args), default=str)),
        ("kwargs", json.dumps(dict(entry.kwargs), default=str)),
        ("options", json.dumps(dict(entry.options), default=str)),
        ("published up to", f"{clock(entry.last_slot)}  {ago(entry.last_slot, now)}"),
    ]
    if entry.is_paused:
        state.append(("paused by", f"{entry.paused_by}: {entry.paused_why or 'no reason given'}"))
    if entry.due_since:
        state.append(("due since", f"{clock(entry.due_since)}  {ago(entry.due_since, now)}"))
    for number, slot in enumerate(coming):
        local = slot.astimezone(zone).strftime("%a %Y-%m-%d %H:%M:%S %Z")
        state.append(("" if number else "next slots", f"{clock(slot)}  {local}  {ago(slot, now)}"))
    state += [("job", f"{job.kind} by {job.by}, {ago(job.at, now)}") for job in jobs]
    print_facts(state)
