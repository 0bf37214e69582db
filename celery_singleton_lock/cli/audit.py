"""``celery -A app singleton audit``: parse, call, print."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from . import options
from .failing import telling_errors
from .parameters import Moment, moment_of
from .printing import print_json, print_table
from .times import ago, iso

if TYPE_CHECKING:
    from celery_singleton_lock.recovery.audit import Act

SHOWN_BY_DEFAULT: Final = 50
TITLES: Final = ("WHEN", "WHO", "ACTION", "WHAT", "WHY")
_ABOUT: Final = ("entry", "key", "queue", "what")


@click.command("audit")
@click.option("--action", metavar="NAME", help="Only acts like that: unlocked, entry_paused, purged...")
@click.option("--who", metavar="NAME", help="Only those of this person, or host.")
@click.option("--since", type=Moment(), help="Only since then: 2027-01-31, '2h ago'...")
@options.limit(SHOWN_BY_DEFAULT)
@options.as_json
@click.pass_context
@telling_errors
def audit(
    context: click.Context,
    action: str | None,
    who: str | None,
    since: datetime | timedelta | None,
    limit: int,
    as_json: bool,
) -> None:
    """Show who unlocked, replayed, purged, paused, triggered... what, and why; latest first.

    It is kept in the ledger (singleton_database_url). Without one, it is in the log of whoever did it:
    look for celery_singleton_lock.audit.
    """
    from celery_singleton_lock.recovery.audit import acts_of

    app, now = context.obj.app, datetime.now(UTC)
    acts = acts_of(app, limit=limit, action=action, who=who, since=moment_of(context, since))
    if as_json:
        print_json({"acts": [_facts(act) for act in acts]})
        return
    print_table(TITLES, [_row(act, now) for act in acts])
    if not acts:
        click.echo("Nothing was done that is written here.", err=True)


def _facts(act: Act) -> dict[str, Any]:
    return {"at": iso(act.at), "who": act.who, "action": act.action, "facts": dict(act.facts)}


def _row(act: Act, now: datetime) -> tuple[object, ...]:
    about = next((act.facts[name] for name in _ABOUT if name in act.facts), None)
    rest = [
        f"{name}={value}"
        for name, value in act.facts.items()
        if name not in ("why", *_ABOUT) and value not in (None, "")
    ]
    what = " ".join(map(str, filter(None, (about, *rest))))
    return ago(act.at, now), act.who, act.action, what or None, act.facts.get("why") or None
