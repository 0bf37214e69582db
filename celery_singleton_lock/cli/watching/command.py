"""``watch``: parse, look, draw."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Any

import click

from celery_singleton_lock.cli import options
from celery_singleton_lock.cli.failing import telling_errors
from celery_singleton_lock.cli.parameters import Seconds
from celery_singleton_lock.cli.printing import has_colour, print_json, terminal_width

from .drawing import View, draw
from .happening import Diary


@click.command("watch")
@click.option(
    "--interval", type=Seconds(0.2), default=1.0, show_default=True, metavar="SECONDS",
    help="How often to look.",
)  # fmt: skip
@click.option("--once", is_flag=True, help="Look once, print it, and end: for scripts.")
@options.as_json
@click.pass_context
@telling_errors
def watch(context: click.Context, interval: float, once: bool, as_json: bool) -> None:
    """See beats, coming slots, running tasks and what happens, live. q ends it.

    It reads the lease store, and the number of dead letters, and hears the events of workers that send
    them (worker -E); it changes nothing. Of workers that send none, what begins and ends between two
    looks is not seen.
    """
    from .looking import Lookout

    app = context.obj.app
    if once or as_json:
        with Lookout(app) as lookout:
            look = lookout.look_once()
        if as_json:
            print_json(look.facts)
        else:
            width = terminal_width() if sys.stdout.isatty() else 100
            for line in draw(View(look), width=width, height=None, has_colour=has_colour()):
                click.echo(line)
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("this is no terminal: give --once")
    _watch(app, interval)


def _watch(app: Any, interval: float) -> None:
    from celery_singleton_lock.core.errors import StoreUnavailable

    from .hearing import Ear
    from .looking import Lookout
    from .terminal import Terminal

    diary, view, ear = Diary(), None, Ear(app)
    has_colours = has_colour()
    with Lookout(app) as lookout, Terminal() as terminal, ear:
        while True:
            began = time.monotonic()
            try:
                look = lookout.look()
                diary.take_in(look)
                view = View(look)
            except StoreUnavailable as error:
                view = (view or View(None)).without_store(str(error))
            view = replace(view, happenings=diary.hear(ear.take()))
            size = terminal.size
            terminal.show(draw(view, width=size.columns, height=size.lines, has_colour=has_colours))
            # A look that takes long is repeated less often, so that watching never becomes a load.
            took = time.monotonic() - began
            if terminal.key_within(max(interval - took, took)) in ("q", "Q", "\x03", "\x1b"):
                return
