"""``celery -A app singleton locks`` and ``unlock``: parse, call, print."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

import click

from . import options
from .failing import ensure_somebody_to_ask, fail, telling_errors, telling_errors_of_changes
from .printing import Shade, print_facts, print_json, print_table, printable
from .times import spoken

if TYPE_CHECKING:
    from celery_singleton_lock.leases import LeaseStore
    from celery_singleton_lock.recovery.locks import Lock

SHOWN_BY_DEFAULT: Final = 200
STATES: Final = ("held", "parked", "expired", "free")
COLOURS: Final = {"held": "green", "parked": "cyan", "expired": "yellow", "free": "dim"}
MOST_CLOSE_KEYS: Final = 10_000


@click.command("locks")
@click.argument("prefix", default="")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True,
    help="Only in this state; may be repeated. By default all but free.",
)  # fmt: skip
@click.option("--overdue", is_flag=True, help="Only those held for longer than was expected.")
@options.limit(SHOWN_BY_DEFAULT)
@options.as_json
@click.pass_context
@telling_errors
def locks(
    context: click.Context,
    prefix: str,
    states: tuple[str, ...],
    overdue: bool,
    limit: int,
    as_json: bool,
) -> None:
    """Show who holds what, oldest first. PREFIX: only keys that begin so, say `task:` or `run:`.

    held: somebody has it. parked: kept for a run that will be tried again. expired: its holder let it
    run out. free: nobody has it; the record remembers what was done.
    """
    from celery_singleton_lock.core.models import RecordState
    from celery_singleton_lock.recovery.locks import TAKEN, locks_in

    wanted = [RecordState(each) for each in states] or TAKEN
    found = [
        each for each in locks_in(store_of(context), prefix, wanted) if each.overdue_by or not overdue
    ]
    found.sort(key=lambda lock: (lock.since, lock.key))
    shown = found[:limit]
    if as_json:
        print_json({"total": len(found), "locks": [each.facts for each in shown]})
        return
    print_table(TITLES, [row_of(each) for each in shown])
    if not found:
        click.echo("No locks." if not prefix else f"No locks under {printable(prefix)}.", err=True)
    elif len(found) > limit:
        click.echo(f"These are {limit} of {len(found)}: see --limit, or give a prefix.", err=True)


@click.command("unlock")
@click.argument("key")
@options.required_reason
@options.yes
@options.as_json
@click.pass_context
@telling_errors_of_changes
def unlock(context: click.Context, key: str, reason: str, yes: bool, as_json: bool) -> None:
    """Take a lease from its holder, for when you know that the holder is gone or must stop.

    The holder is told that its lease is lost, at its next renewal, and cannot finish; the fence moves
    on, so that what it still writes can be refused; and whoever waits may begin. Nothing ends the
    holder itself: a task that does not look at its lease goes on until it returns.
    """
    from celery_singleton_lock.recovery import locks as api

    store = store_of(context)
    lock = api.look_at(store, key)
    if lock is None or lock.state not in api.TAKEN:
        fail(f"nobody holds {key}{_did_you_mean(store, key)}")
    if harm := api.why_not_unlock(lock):
        fail(f"not unlocked: {harm}")
    if not yes:
        question = f"Take {printable(key)} from {printable(lock.holder)}?"
        ensure_somebody_to_ask(f"{question} Give --yes", as_json=as_json)
        print_facts(facts_of(lock))
        click.confirm(question, abort=True, err=True)
    taken = api.unlock(store, key, why=reason, app=context.obj.app)
    if taken is None:
        fail(f"nobody holds {key} any more")
    if as_json:
        print_json({"unlocked": taken.facts})
        return
    click.echo(
        f"Unlocked {printable(key)}. {printable(taken.holder)} held it with fence {taken.fence}: it "
        "is told that its lease is lost, and the next holder has a larger fence."
    )


TITLES: Final = ("KEY", "STATE", "HOLDER", "AGE", "LEFT", "OVERDUE", "FENCE", "NOTE")


def row_of(lock: Lock) -> tuple[object, ...]:
    return (
        lock.key,
        Shade(lock.state.value, COLOURS[lock.state.value]),
        lock.holder or None,
        spoken(lock.age),
        spoken(lock.remaining) if lock.remaining else None,
        Shade(spoken(lock.overdue_by), "red") if lock.overdue_by else None,
        lock.fence,
        _told(lock) or None,
    )


def facts_of(lock: Lock) -> list[tuple[str, object]]:
    from celery_singleton_lock.recovery.locks import is_worth_knowing

    return [
        ("key", lock.key),
        ("state", Shade(lock.state.value, COLOURS[lock.state.value])),
        ("holder", lock.holder),
        ("owner", lock.owner),
        ("held for", spoken(lock.age)),
        ("fence", lock.fence),
        *is_worth_knowing(lock.note),
    ]


def _told(lock: Lock) -> str:
    from celery_singleton_lock.recovery.locks import is_worth_knowing

    # What stands in another column is not said twice.
    elsewhere = {"worker", "beat", "host", "pid", "expect_within"}
    told = [
        (name, value)
        for name, value in is_worth_knowing(lock.note)
        if name not in elsewhere and str(value) not in lock.key
    ]
    if lock.takeovers:
        told.append(("takeovers", lock.takeovers))
    return " ".join(f"{name}={value}" for name, value in told)


def _did_you_mean(store: LeaseStore, key: str) -> str:
    from celery_singleton_lock.recovery.locks import locks_in

    keys = [lock.key for lock, _ in zip(locks_in(store), range(MOST_CLOSE_KEYS), strict=False)]
    inside = [each for each in keys if key in each]
    close = inside[:3] or get_close_matches(key, keys, n=3)
    return f": did you mean {' or '.join(map(repr, close))}?" if close else ""


def store_of(context: click.Context) -> LeaseStore:
    from celery_singleton_lock.worker.parts import parts_of

    return parts_of(context.obj.app).store
