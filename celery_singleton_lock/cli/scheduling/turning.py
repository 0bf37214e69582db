"""``schedule pause``, ``resume``, ``trigger`` and ``backfill``: parse, call, print."""

from __future__ import annotations

from datetime import datetime, timedelta

import click

from celery_singleton_lock.cli import options
from celery_singleton_lock.cli.failing import telling_errors_of_changes
from celery_singleton_lock.cli.parameters import Moment, placed
from celery_singleton_lock.cli.printing import printable

from .backfilling import fill
from .telling import now_of, schedule_of, tell, tell_entry, warn_without_beat


@click.command("pause")
@click.argument("name")
@options.reason
@options.as_json
@click.pass_context
@telling_errors_of_changes
def pause_entry(context: click.Context, name: str, reason: str, as_json: bool) -> None:
    """Publish no slot of an entry until it is resumed."""
    schedule_of(context).pause(name, why=reason)
    tell(f"Paused {name}.", {"paused": name}, as_json)


@click.command("resume")
@click.argument("name")
@options.reason
@options.as_json
@click.pass_context
@telling_errors_of_changes
def resume_entry(context: click.Context, name: str, reason: str, as_json: bool) -> None:
    """Go on with the slots from now on: those that were passed over stay so."""
    schedule = schedule_of(context)
    if not schedule.entry(name).is_paused:
        click.echo(f"{printable(name)} was not paused.", err=True)
    schedule.resume(name, why=reason)
    tell_entry(context, "Resumed", name, as_json)


@click.command("trigger")
@click.argument("name")
@options.reason
@options.as_json
@click.pass_context
@telling_errors_of_changes
def trigger_entry(context: click.Context, name: str, reason: str, as_json: bool) -> None:
    """Publish a run of an entry now, apart from its schedule, and tell the run's id."""
    schedule = schedule_of(context)
    run = schedule.trigger(name, why=reason)
    tell(f"Triggered {name}: its run is {run}.", {"triggered": name, "run_id": run}, as_json)
    warn_without_beat(schedule)


@click.command("backfill")
@click.argument("name")
@click.option("--start", type=Moment(), required=True, help="The first time: 2027-01-31, '2h ago'...")
@click.option("--end", type=Moment(), default="now", show_default=True, help="The last time.")
@click.option(
    "--wait/--no-wait", default=True, show_default=True, help="Show how far it is until it is done."
)
@click.option("--dry-run", is_flag=True, help="Only say which slots.")
@options.reason
@options.yes
@options.as_json
@click.pass_context
@telling_errors_of_changes
def backfill_entry(
    context: click.Context,
    name: str,
    start: datetime | timedelta,
    end: datetime | timedelta,
    wait: bool,
    dry_run: bool,
    reason: str,
    yes: bool,
    as_json: bool,
) -> None:
    """Publish the slots of an entry of a time that is past, oldest first.

    Each has the id of the run that it would have been: a SingletonTask that was executed for a slot,
    and is still remembered, is not executed again. Ctrl-C ends the waiting, not the backfill.
    """
    now, zone = now_of(context), context.obj.app.timezone
    bounds = placed(start, now, zone), placed(end, now, zone)
    fill(
        schedule_of(context),
        name,
        *bounds,
        wait=wait,
        dry_run=dry_run,
        why=reason,
        yes=yes,
        as_json=as_json,
    )
