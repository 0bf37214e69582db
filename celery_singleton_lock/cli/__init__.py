"""Commands under Celery's own: ``celery -A app singleton ...``."""

from __future__ import annotations

import click


@click.group()
def singleton() -> None:
    """Work with what celery-singleton-lock keeps for people."""
