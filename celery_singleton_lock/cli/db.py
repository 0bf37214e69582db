"""``celery -A app singleton db``: the tables of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .failing import NOT_ALL, telling_errors, telling_errors_of_changes
from .options import as_json
from .printing import print_json

if TYPE_CHECKING:
    from celery_singleton_lock.ledger import Ledger


@click.group()
def db() -> None:
    """The tables of the ledger, in the database of singleton_database_url."""


@db.command()
@as_json
@click.pass_context
@telling_errors_of_changes
def upgrade(context: click.Context, as_json: bool) -> None:
    """Create the tables, or bring them to this version. Data stays; safe to repeat, and to run while
    workers of the version before run."""
    ledger = _of(context)
    applied = ledger.schema.upgrade()
    current = ledger.schema.current()
    if as_json:
        print_json({"ledger": ledger.name, "applied": applied, "revision": current})
    else:
        done = f"applied {', '.join(applied)}" if applied else "nothing to do"
        click.echo(f"{ledger.name}: {done}; now at revision {current}")


@db.command()
@as_json
@click.pass_context
@telling_errors
def current(context: click.Context, as_json: bool) -> None:
    """Show the revision of the tables, and the one that this version needs."""
    from celery_singleton_lock.ledger.schema import head

    ledger = _of(context)
    found = ledger.schema.current()
    if as_json:
        print_json({"ledger": ledger.name, "revision": found, "needed": head()})
    else:
        click.echo(f"{ledger.name}: revision {found or 'none'}, needed {head()}")


@db.command()
@as_json
@click.pass_context
@telling_errors
def check(context: click.Context, as_json: bool) -> None:
    """Compare the tables with what this version expects. Exit code 1 if workers would refuse to start,
    or if somebody has changed a table."""
    from celery_singleton_lock.core.errors import LedgerOutdated

    ledger = _of(context)
    try:
        ledger.schema.ensure_current()
        problems = ledger.schema.differences()
    except LedgerOutdated as outdated:
        problems = [str(outdated)]
    if as_json:
        print_json({"ledger": ledger.name, "problems": problems})
    else:
        click.echo("\n".join(problems) if problems else f"{ledger.name}: all as it should be")
    if problems:
        raise SystemExit(NOT_ALL)


def _of(context: click.Context) -> Ledger:
    from celery_singleton_lock.ledger import required_ledger_of

    return required_ledger_of(context.obj.app)
