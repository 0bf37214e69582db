"""``schedule add``, ``change`` and ``remove``: parse, call, print."""

from __future__ import annotations

from typing import Any

import click

from celery_singleton_lock.cli import options
from celery_singleton_lock.cli.failing import ask, telling_errors_of_changes
from celery_singleton_lock.cli.parameters import Crontab, Json, Moment, Solar, Span, placed
from celery_singleton_lock.cli.printing import printable

from .telling import now_of, schedule_of, spoken_schedule, tell, tell_entry


def _defining(command: options.Decorated) -> options.Decorated:
    """The options that say what an entry is, for `add` and `change`."""
    ours = (
        click.option("--every", type=Span(), help="At each of these intervals: 30, 90s, 5m, 1h, 1d."),
        click.option("--crontab", type=Crontab(), help="'0 6 * * 1-5', in the time zone of the app."),
        click.option("--solar", type=Solar(), help="'sunset 48.2 16.4': event, latitude, longitude."),
        click.option("--at", type=Moment(), help="Once: 2027-01-31T06:00, or with +01:00."),
        click.option("--args", type=Json(list, """'["eu", 1]'"""), help="A JSON array."),
        click.option("--kwargs", type=Json(dict, """'{"day": 1}'"""), help="A JSON object."),
        click.option("--option", "task_options", type=Json(dict, """'{"queue": "slow"}'"""),
                     help="A JSON object of options of apply_async: queue, priority, expires..."),
        click.option("--catch-up", type=click.Choice(("none", "latest", "all")),
                     help="Which slots to publish that were missed while no beat ran."),
        click.option("--catch-up-window", type=Span(), help="Older slots are not caught up."),
        click.option("--jitter", type=Span(), help="Publish each slot up to so much later."),
        click.option("--start", type=Moment(), help="No slot before this."),
        click.option("--end", type=Moment(), help="No slot after this."),
        options.reason,
        options.as_json,
    )  # fmt: skip
    for option in reversed(ours):  # the last to be applied is the first in the help
        command = option(command)
    return command


@click.command("add")
@click.argument("name")
@click.argument("task")
@_defining
@click.pass_context
@telling_errors_of_changes
def add_entry(
    context: click.Context, /, name: str, task: str, reason: str, as_json: bool, **given: Any
) -> None:
    """Add an entry NAME that calls TASK. It begins now: its first slot is the next one."""
    when = _schedule_of(context, given)
    if when is None:
        raise click.UsageError("say when: --every, --crontab, --solar or --at")
    app = context.obj.app
    app.loader.import_default_modules()
    if task not in app.tasks:
        click.echo(f"Note: no task {printable(task)} is known here. A worker must know it.", err=True)
    schedule_of(context).add(name, task, when, why=reason, **_definition(context, given))
    tell_entry(context, "Added", name, as_json)


@click.command("change")
@click.argument("name")
@click.option("--task", metavar="NAME", help="The task to call.")
@_defining
@click.pass_context
@telling_errors_of_changes
def change_entry(
    context: click.Context, /, name: str, task: str | None, reason: str, as_json: bool, **given: Any
) -> None:
    """Change some of what an entry was added with. What is due and not published is left out."""
    when = _schedule_of(context, given)
    changes = _definition(context, given)
    if when is not None:
        changes["schedule"] = when
    if task is not None:
        changes["task"] = task
    if not changes:
        raise click.UsageError("say what to change: --every, --crontab, --args, --task...")
    schedule_of(context).change(name, why=reason, **changes)
    tell_entry(context, "Changed", name, as_json)


@click.command("remove")
@click.argument("name")
@options.reason
@options.yes
@options.as_json
@click.pass_context
@telling_errors_of_changes
def remove_entry(context: click.Context, name: str, reason: str, yes: bool, as_json: bool) -> None:
    """Remove an entry that was added, with its triggers and backfills that are not done."""
    schedule = schedule_of(context)
    entry = schedule.entry(name)
    if not yes and entry.is_dynamic:
        ask(
            f"Remove {printable(name)} ({spoken_schedule(entry)}, {printable(entry.task)})?",
            as_json=as_json,
        )
    schedule.remove(name, why=reason)
    tell(f"Removed {name}.", {"removed": name}, as_json)


def _schedule_of(context: click.Context, given: dict[str, Any]) -> Any:
    """One of the ways to say when, taken out of `given`; None: none was used."""
    ways = {name: given.pop(name) for name in ("every", "crontab", "solar", "at")}
    used = [name for name, value in ways.items() if value is not None]
    if len(used) > 1:
        raise click.UsageError("give one of --every, --crontab, --solar and --at")
    if ways["at"] is not None:
        return placed(ways["at"], now_of(context), context.obj.app.timezone)
    for name in ("crontab", "solar"):
        if ways[name] is not None:
            ways[name].app = context.obj.app
    return ways[used[0]] if used else None


def _definition(context: click.Context, given: dict[str, Any]) -> dict[str, Any]:
    zone = context.obj.app.timezone
    said = {name: value for name, value in given.items() if value is not None}
    for bound in ("start", "end"):
        if bound in said:
            said[bound] = placed(said[bound], now_of(context), zone)
    if "task_options" in said:
        said["options"] = said.pop("task_options")
    return said
