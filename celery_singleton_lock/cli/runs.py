"""``celery -A app singleton runs``: what the ledger knows of the past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from . import options
from .failing import fail, telling_errors
from .ids import beginning, whole
from .parameters import Moment, moment_of
from .printing import Shade, print_facts, print_json, print_table, printable
from .times import ago, clock, spoken

if TYPE_CHECKING:
    from celery_singleton_lock.ledger.queries import Filter, PastRun, Queries

SHOWN_BY_DEFAULT: Final = 50
LOOKED_BACK: Final = timedelta(days=1)
"""For gaps, where there is no run to be seen."""
STATUSES: Final = (
    "due", "missed", "published", "running", "retrying", "skipped", "succeeded", "failed", "dead",
)  # fmt: skip
COLOURS: Final = {
    "due": "yellow",
    "missed": "magenta",
    "published": "cyan",
    "running": "blue",
    "retrying": "yellow",
    "skipped": "dim",
    "succeeded": "green",
    "failed": "red",
    "dead": "red",
}


@click.command("runs")
@click.argument("run_id", required=False)
@click.option("--entry", metavar="NAME", help="Only those of this entry of the schedule.")
@click.option("--task", metavar="NAME", help="Only those of this task.")
@click.option(
    "--status", "statuses", type=click.Choice(STATUSES), multiple=True,
    help="Only where they stand so; may be repeated.",
)  # fmt: skip
@click.option("--since", type=Moment(), help="Due at this time or later; or since so long: 2d.")
@click.option("--until", type=Moment(), help="Due before this time.")
@click.option("--slowest", is_flag=True, help="Those that took longest, instead of the newest.")
@click.option("--after", metavar="PLACE", help="Go on after the page before: `next` of --json.")
@options.limit(SHOWN_BY_DEFAULT)
@options.as_json
@click.pass_context
@telling_errors
def runs(
    context: click.Context,
    run_id: str | None,
    entry: str | None,
    task: str | None,
    statuses: tuple[str, ...],
    since: datetime | timedelta | None,
    until: datetime | timedelta | None,
    slowest: bool,
    after: str | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show the runs that the ledger knows, newest first; with RUN_ID, all that is known of one.

    Missed slots are among them, as `--status missed`: they were not published, and will not be.
    """
    from celery_singleton_lock.ledger import required_ledger_of
    from celery_singleton_lock.ledger.happenings import Status
    from celery_singleton_lock.ledger.queries import Filter, Queries

    if slowest and after:
        raise click.UsageError("--after goes on with the newest, and --slowest is another order")
    ledger = required_ledger_of(context.obj.app)
    ledger.schema.ensure_current()
    queries = Queries(ledger)
    if run_id is not None:
        show_one(queries, run_id, as_json)
        return
    which = Filter(
        entry=entry,
        task=task,
        statuses=[Status(each) for each in statuses],
        since=moment_of(context, since),
        until=moment_of(context, until),
        after=after,
    )
    show_all(queries, which, slowest, limit, as_json)


def show_all(queries: Queries, which: Filter, slowest: bool, limit: int, as_json: bool) -> None:
    if slowest:
        found, place = queries.slowest(which, limit=limit), None
    else:
        page = queries.runs(which, limit=limit)
        found, place = list(page.runs), page.next
    now = datetime.now(UTC)
    oldest = which.since or min((each.due_at for each in found), default=now - LOOKED_BACK)
    gaps = queries.gaps(oldest)
    if as_json:
        told = [each.as_json for each in gaps]
        print_json({"runs": [each.facts for each in found], "next": place, "gaps": told})
        return
    print_table(TITLES, [row_of(each, now) for each in found])
    if not found:
        click.echo("No such runs.", err=True)
    elif place is not None:
        click.echo(f"There are more: --after {place}", err=True)
    for gap in gaps:
        span = f"from {clock(gap.began_at)} to {clock(gap.ended_at)}"
        click.echo(f"History lacks {gap.facts} facts of {printable(gap.replica)}, {span}.", err=True)


def show_one(queries: Queries, run_id: str, as_json: bool) -> None:
    run = queries.run(run_id)
    if run is None:
        run_id = whole(run_id, queries.ids_beginning_with(beginning(run_id)))
        run = queries.run(run_id)
    if run is None:
        fail(f"history knows no run {printable(run_id)}")
    attempts, letters = queries.attempts(run_id), queries.letters(run_id)
    if as_json:
        told = [each.facts for each in attempts]
        print_json({**run.facts, "attempts": told, "letters": letters})
        return
    shown = {**run.facts, "status": _status(run)}
    print_facts([(name, value) for name, value in shown.items() if value is not None])
    for letter in letters:
        print_facts([("letter", f"{letter['letter_id']} {letter['dead_at']}")])
    if attempts:
        click.echo()
        titles = ("ATTEMPT", "OUTCOME", "WORKER", "STARTED", "TOOK", "FENCE", "ERROR")
        print_table(
            titles,
            [
                (
                    each.attempt,
                    each.outcome,
                    each.worker,
                    clock(each.started_at),
                    _spoken(each.duration_s),
                    each.fence,
                    each.error,
                )
                for each in attempts
            ],
        )


TITLES: Final = (
    "RUN", "ENTRY", "TASK", "DUE", "STATUS", "WHY", "LAG", "TOOK", "ATTEMPT", "WORKER", "ERROR",
)  # fmt: skip


def row_of(run: PastRun, now: datetime) -> tuple[object, ...]:
    return (
        run.run_id,
        run.entry,
        run.task,
        ago(run.due_at, now),
        _status(run),
        run.reason,
        _spoken(run.lag_s),
        _spoken(run.duration_s),
        run.attempt or None,
        run.worker,
        run.error,
    )


def _status(run: PastRun) -> Shade:
    return Shade(run.status.value, COLOURS[run.status.value])


def _spoken(seconds: float | None) -> str | None:
    return None if seconds is None else spoken(seconds)
