"""``celery -A app singleton quorum``: parse, call, print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from . import options
from .failing import (
    NOT_ALL,
    WRONG_USAGE,
    ensure_somebody_to_ask,
    fail,
    telling_errors,
    telling_errors_of_changes,
)
from .locks import store_of
from .printing import Shade, print_json, print_table, printable

if TYPE_CHECKING:
    from datetime import timedelta

    from celery_singleton_lock.leases.redlock import RedlockLeaseStore
    from celery_singleton_lock.leases.redlock.facts import NodeFacts

TITLES: Final = (
    *("NODE", "STATE", "LAG", "CLOCK", "ROLE", "DISK", "EVICTS", "RUN ID", "GENERATION"),
    "TROUBLE",
)
COLOURS: Final = {"in": "green", "new": "cyan", "out": "yellow", "away": "red"}


@click.group("quorum")
def quorum() -> None:
    """The nodes of a lease store over several servers (Redlock)."""


@quorum.command("status")
@options.as_json
@click.pass_context
@telling_errors
def status(context: click.Context, as_json: bool) -> None:
    """Show which nodes take part, how they are set up, and what to look at. Nothing is changed.

    in: it takes part. new: it has never done so, or forgot that it did. out: it lost its memory, and
    is kept out until it is repaired. away: it does not answer. Ends with 1 if no majority takes part.
    """
    from celery_singleton_lock.leases.redlock.facts import remarks_on

    facts = _quorum_of(context).node_facts()
    remarks = remarks_on(facts)
    taking_part, majority = _majority_of(facts)
    if as_json:
        print_json(
            {
                "taking_part": taking_part,
                "majority": majority,
                "nodes": [each.facts for each in facts],
                "remarks": remarks,
            }
        )
    else:
        print_table(TITLES, [_row(each) for each in facts])
        click.echo(f"{taking_part} of {len(facts)} take part; {majority} are needed.", err=True)
        for remark in remarks:
            click.echo(f"! {printable(remark)}", err=True)
    if taking_part < majority:
        raise SystemExit(NOT_ALL)


@quorum.command("accept-memory-loss")
@options.required_reason
@options.yes
@options.as_json
@click.pass_context
@telling_errors_of_changes
def accept_memory_loss(context: click.Context, reason: str, yes: bool, as_json: bool) -> None:
    """Go on after a majority of the nodes lost its memory, with what is left of it.

    Only a person can know that nobody is at work any more who was granted what is forgotten: it may
    be granted a second time. Stop the workers first, or be sure that doing work twice is bearable.
    """
    from celery_singleton_lock.recovery.audit import record, whoami

    store = _quorum_of(context)
    facts = store.node_facts()
    taking_part, majority = _majority_of(facts)
    if taking_part >= majority:
        fail(f"there is nothing to accept: {taking_part} of {len(facts)} nodes take part, and remember")
    if not yes:
        question = _question(facts)
        ensure_somebody_to_ask(f"{question} Give --yes", as_json=as_json)
        print_table(TITLES, [_row(each) for each in facts])
        click.confirm(question, abort=True, err=True)
    who = whoami()
    taken = store.accept_memory_loss(who=who, why=reason)
    record("memory_loss_accepted", who, app=context.obj.app, nodes=taken, why=reason)
    if as_json:
        print_json({"taking_part": taken})
        return
    click.echo(f"Accepted: {len(taken)} of {len(facts)} nodes begin anew.")


def _question(facts: list[NodeFacts]) -> str:
    answering = sum(each.answers for each in facts)
    away = len(facts) - answering
    doubt = f" {away} do not answer, and may remember: bring them back first." if away else ""
    return (
        f"Go on with what {answering} of {len(facts)} nodes still know?{doubt} What they forgot may be "
        "granted a second time."
    )


def _majority_of(facts: list[NodeFacts]) -> tuple[int, int]:
    """How many nodes take part, and how many must."""
    return sum(each.takes_part for each in facts), len(facts) // 2 + 1


def _row(node: NodeFacts) -> tuple[object, ...]:
    return (
        node.name,
        Shade(node.state, COLOURS[node.state]),
        _milliseconds(node.lag),
        _milliseconds(node.clock_offset, sign="+"),
        node.role,
        _disk(node),
        None if node.may_evict is None else Shade("yes", "red") if node.may_evict else "no",
        node.run_id and node.run_id[:8],
        node.generation,
        node.trouble or None,
    )


def _disk(node: NodeFacts) -> str | None:
    """How it keeps its memory over a restart; None if that is not known."""
    if not node.answers:
        return None
    kinds = [("append only", node.has_append_only_file), ("snapshots", node.has_snapshots)]
    return ", ".join(name for name, has_it in kinds if has_it) or "none"


def _milliseconds(span: timedelta | None, sign: str = "") -> str | None:
    return None if span is None else f"{span.total_seconds() * 1000:{sign}.1f}ms"


def _quorum_of(context: click.Context) -> RedlockLeaseStore:
    from celery_singleton_lock.leases.redlock import RedlockLeaseStore

    store = store_of(context)
    if not isinstance(store, RedlockLeaseStore):
        fail(
            f"the lease store is {store.name}: a quorum is a list of three or more Redis URLs in "
            "singleton_lock_url",
            WRONG_USAGE,
        )
    return store
