"""``celery -A app singleton flower``."""

from __future__ import annotations

import click

from .failing import telling_errors


@click.command("flower", context_settings={"ignore_unknown_options": True})
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
@telling_errors
def flower(context: click.Context, options: tuple[str, ...]) -> None:
    """Start Flower, with pages for the schedule, runs, locks and dead letters.

    OPTIONS are those of Flower itself, say --port=5555 --basic-auth=user:password. It listens on
    127.0.0.1 unless --address says otherwise.
    """
    from celery_singleton_lock.flower import install

    install()
    from flower.command import flower as flowers_own
    from flower.options import options as settings

    # Flower listens everywhere by default. Its environment, config and options come after this.
    settings.address = "127.0.0.1"

    context.invoke(flowers_own, tornado_argv=options)
