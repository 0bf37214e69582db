"""Commands under Celery's own: ``celery -A app singleton ...``.

Every `celery` command imports this: whatever a command needs is imported inside it.
"""

from __future__ import annotations

import click

from .dead_letters import dead_letters


@click.group()
def singleton() -> None:
    """Work with what celery-singleton-lock keeps for people.

    Exit codes: 0 all was done; 1 not all of it, or there was nothing; 2 wrong usage or setting; 3 the
    broker did not answer.
    """


singleton.add_command(dead_letters)
