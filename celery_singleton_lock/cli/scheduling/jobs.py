"""``schedule jobs`` and ``schedule cancel``: parse, call, print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from celery_singleton_lock.cli import options
from celery_singleton_lock.cli.failing import fail, telling_errors, telling_errors_of_changes
from celery_singleton_lock.cli.printing import print_json, print_table
from celery_singleton_lock.cli.times import ago, clock, iso

from .telling import job_facts, now_of, schedule_of, tell, warn_without_beat

if TYPE_CHECKING:
    from datetime import datetime

    from celery_singleton_lock.beat.book import Job

TITLES = ("JOB", "KIND", "ENTRY", "FROM", "TO", "PUBLISHED UP TO", "BY", "SINCE")


@click.command("jobs")
@options.as_json
@click.pass_context
@telling_errors
def list_jobs(context: click.Context, as_json: bool) -> None:
    """Show the triggers and backfills that are not done yet, oldest first."""
    schedule = schedule_of(context)
    now = now_of(context)
    jobs = [(job, schedule.position_of(job)) for job in schedule.jobs()]
    if as_json:
        told = [{**job_facts(job), "published_up_to": iso(position)} for job, position in jobs]
        print_json({"now": iso(now), "jobs": told})
        return
    print_table(TITLES, [_row(job, position, now) for job, position in jobs])
    if not jobs:
        click.echo("No trigger or backfill is waiting.", err=True)
    else:
        warn_without_beat(schedule)


@click.command("cancel")
@click.argument("job")
@options.reason
@options.as_json
@click.pass_context
@telling_errors_of_changes
def cancel_job(context: click.Context, job: str, reason: str, as_json: bool) -> None:
    """Publish no more of a trigger or backfill. JOB: its id, or how it begins; see `schedule jobs`.

    What was published is executed all the same.
    """
    cancelled = schedule_of(context).cancel(job, why=reason)
    if cancelled is None:
        fail(f"no job has an id that begins with {job!r}, so it may be done: see `schedule jobs`")
    told = f"Cancelled {cancelled.kind} {cancelled.id} of {cancelled.entry}."
    tell(told, {"cancelled": job_facts(cancelled)}, as_json)


def _row(job: Job, position: datetime | None, now: datetime) -> tuple[object, ...]:
    return (
        job.id[:12],
        job.kind,
        job.entry,
        clock(job.start),
        clock(job.end),
        clock(position),
        job.by,
        ago(job.at, now),
    )
