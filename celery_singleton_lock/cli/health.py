"""``celery -A app singleton health`` and ``log-level``: parse, call, print."""

from __future__ import annotations

from typing import Final

import click

from . import options
from .failing import NOT_ALL, fail, telling_errors, telling_errors_of_changes
from .parameters import Seconds
from .printing import print_json, printable

LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")


def _waiting(seconds: float) -> options.Decorator:
    return click.option(
        "--timeout", type=Seconds(0.1), default=seconds, show_default=True, metavar="SECONDS",
        help="How long to wait for an answer.",
    )  # fmt: skip


@click.command("health")
@click.argument("role", type=click.Choice(["beat", "worker"]), required=False)
@click.option("--live", is_flag=True, help="Ask whether it is alive, not whether it is ready.")
@click.option("--address", metavar="HOST:PORT", help="Where it serves, if not at singleton_http.")
@_waiting(5.0)
@options.as_json
@click.pass_context
@telling_errors
def health(
    context: click.Context,
    role: str | None,
    live: bool,
    address: str | None,
    timeout: float,
    as_json: bool,
) -> None:
    """Say whether the worker or beat of this host is ready: exit code 0, or 1 with the reasons.

    Asks the process itself where `singleton_http` is set. Else a beat is looked for by its heartbeat in
    the lease store, and a worker by a ping; ROLE says which of them it must be.
    """
    from celery_singleton_lock.observability.probing import probe
    from celery_singleton_lock.settings import Settings
    from celery_singleton_lock.settings.values import read_address

    app = context.obj.app
    settings = Settings.from_app(app)
    if address is not None:
        read_address("--address", address)
    found = probe(app, settings, role=role, is_live=live, address=address, timeout_s=timeout)
    what = "alive" if live else "ready"
    if as_json:
        print_json({what: found.is_well, "reasons": list(found.reasons), "asked": found.asked})
    else:
        click.echo(what if found.is_well else f"not {what}")
        for reason in found.reasons:
            click.echo(printable(reason), err=True)
    if not found.is_well:
        raise SystemExit(NOT_ALL)


@click.command("log-level")
@click.argument("level", type=click.Choice(LEVELS, case_sensitive=False))
@click.option(
    "-d", "--destination", multiple=True, metavar="NODE", help="Only this one; may be repeated."
)
@_waiting(2.0)
@options.as_json
@click.pass_context
@telling_errors_of_changes
def log_level(
    context: click.Context, level: str, destination: tuple[str, ...], timeout: float, as_json: bool
) -> None:
    """Set the level of this package's log lines in running workers, until they end.

    A beat hears it, too, where `beat_enable_remote_control` is on.
    """
    replies = context.obj.app.control.broadcast(
        "singleton_log_level",
        arguments={"level": level.upper()},
        destination=list(destination) or None,
        reply=True,
        timeout=timeout,
    )
    answers = {name: said for reply in replies or [] for name, said in reply.items()}
    if as_json:
        print_json(answers)
    for name, said in () if as_json else sorted(answers.items()):
        click.echo(f"{printable(name)}: {printable(said.get('ok') or said.get('error'))}")
    if not answers:
        fail("nobody answered: is a worker running, with remote control?", NOT_ALL)
