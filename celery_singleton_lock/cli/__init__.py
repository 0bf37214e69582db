"""Commands under Celery's own: ``celery -A app singleton ...``.

Every `celery` command imports this: whatever a command needs is imported inside it.
"""

from __future__ import annotations

import click

from celery_singleton_lock.settings.hiding import hide_secrets

from .audit import audit
from .db import db
from .dead_letters import dead_letters
from .doctor import doctor
from .flower import flower
from .health import health, log_level
from .locks import locks, unlock
from .outbox import outbox
from .quorum import quorum
from .runs import runs
from .scheduling import schedule
from .streams import streams
from .watching import watch

# Not in a command: Celery's own are what shows settings.
hide_secrets()


class _Commands(click.Group):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Once for all commands: no store could hold such a name, and no table show it."""
        for each in args:
            if any("\ud800" <= sign <= "\udfff" for sign in each):
                raise click.UsageError(f"{each!a} is no valid text in UTF-8")
        return super().parse_args(ctx, args)


@click.group(cls=_Commands)
def singleton() -> None:
    """Work with what celery-singleton-lock keeps for people.

    Exit codes: 0 all was done; 1 not all of it, or there was nothing; 2 wrong usage or setting; 3 the
    broker, the lease store or the database did not answer.
    """


singleton.add_command(db)
singleton.add_command(dead_letters)
singleton.add_command(flower)
singleton.add_command(health)
singleton.add_command(locks)
singleton.add_command(log_level)
singleton.add_command(outbox)
singleton.add_command(streams)
singleton.add_command(unlock)
singleton.add_command(quorum)
singleton.add_command(runs)
singleton.add_command(schedule)
singleton.add_command(doctor)
singleton.add_command(audit)
singleton.add_command(watch)
