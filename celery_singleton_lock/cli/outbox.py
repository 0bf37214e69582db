"""``celery -A app singleton outbox``: parse, call, print."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import click

from . import options
from .failing import telling_errors, telling_errors_of_changes
from .printing import Shade, print_facts, print_json, print_table, printable

if TYPE_CHECKING:
    from celery_singleton_lock.recovery.outbox.reading import Entry, Outbox

SHOWN_BY_DEFAULT: Final = 50
STATES: Final = ("pending", "held", "dead", "published")
COLOURS: Final = {"pending": "cyan", "held": "yellow", "dead": "red", "published": "dim"}
TITLES: Final = ("ROW", "STATE", "KEY", "TASK", "RUN", "CREATED", "TRIES", "ERROR")


@click.group("outbox")
def outbox() -> None:
    """Messages that were written in your own transactions, on their way to the broker."""


@outbox.command("status")
@options.as_json
@click.pass_context
@telling_errors
def status(context: click.Context, as_json: bool) -> None:
    """Show how much is waiting, and for how long.

    pending: not published yet. held: refused by the broker, and tried again later. dead: refused too
    often, and now among the dead letters. published: done, and kept for a while.
    """
    found = _of(context).status()
    if as_json:
        print_json(found.facts)
        return
    facts = found.facts.items()
    print_facts([(name, round(fact, 1) if isinstance(fact, float) else fact) for name, fact in facts])


@outbox.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only these. By default all but published.")
@click.option("--key", metavar="KEY", help="Only those of this key.")
@options.limit(SHOWN_BY_DEFAULT)
@options.as_json
@click.pass_context
@telling_errors
def list_rows(
    context: click.Context, state: str | None, key: str | None, limit: int, as_json: bool
) -> None:
    """Show rows, oldest first."""
    # One more than is shown, to know whether there are more.
    found = _of(context).list(state=state, key=key, limit=limit + 1)
    shown = found[:limit]
    if as_json:
        print_json({"more": len(found) > limit, "rows": [each.facts for each in shown]})
        return
    print_table(TITLES, [_row(each) for each in shown])
    if not shown:
        what = "Nothing" if key is None else f"Nothing of key {printable(key)}"
        click.echo(f"{what} is {state or 'waiting'}.", err=True)
    elif len(found) > limit:
        click.echo(f"There are more than these {limit}: see --limit.", err=True)


@outbox.command("relay")
@click.option("--once", is_flag=True, help="Publish what is pending now, and end.")
@click.pass_context
@telling_errors_of_changes
def relay(context: click.Context, once: bool) -> None:
    """Publish what is in the outbox, until it is told to end (SIGTERM, SIGINT).

    Any number may run, beside those in the beat replicas: they share the work.
    """
    from celery_singleton_lock.core.errors import LedgerUnavailable
    from celery_singleton_lock.recovery.outbox.relay import Relay
    from celery_singleton_lock.recovery.outbox.thread import relay_until_signal
    from celery_singleton_lock.settings import Settings

    app = context.obj.app
    settings = Settings.from_app(app)
    # Who is to go on for ever waits for a database that is away, but not for tables.
    with contextlib.nullcontext() if once else contextlib.suppress(LedgerUnavailable):
        _of(context).ensure_tables()
    if once:
        own = Relay(app, settings)
        click.echo(f"Published: {own.drain()}", err=True)
        own.close()
        return
    click.echo("Relaying. Ctrl-C ends it.", err=True)
    relay_until_signal(app, settings)


def _of(context: click.Context) -> Outbox:
    from celery_singleton_lock.recovery.outbox.reading import Outbox
    from celery_singleton_lock.settings import Settings

    return Outbox(Settings.from_app(context.obj.app))


def _row(row: Entry) -> tuple[object, ...]:
    return (
        row.id,
        Shade(row.state, COLOURS[row.state]),
        row.key,
        row.task,
        row.task_id,
        row.created_at.isoformat(timespec="seconds"),
        row.tries,
        printable(row.error or ""),
    )
