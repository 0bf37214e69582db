"""``celery -A app singleton doctor``: parse, call, print."""

from __future__ import annotations

import sys
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Final

import click

from . import options
from .failing import NOT_ALL
from .parameters import Seconds
from .printing import Shade, has_colour, print_json, printable, shaded, terminal_width

if TYPE_CHECKING:
    from celery_singleton_lock.doctor import Finding
    from celery_singleton_lock.doctor.findings import Check

COLOURS: Final = {
    "ok": "green",
    "warning": "yellow",
    "problem": "red",
    "unknown": "magenta",
    "not applicable": "dim",
}
INDENT: Final = " " * 10
WIDEST: Final = 100


@click.command("doctor")
@click.argument("checks", nargs=-1)
@click.option(
    "--strict", is_flag=True, help="Fail for warnings, and for what could not be found out, too."
)
@click.option(
    "--all", "everything", is_flag=True, help="Also tell what is well, and what does not apply."
)
@click.option(
    "--timeout", type=Seconds(0.1), default=1.0, show_default=True, metavar="SECONDS",
    help="How long to wait for the answers of workers.",
)  # fmt: skip
@options.as_json
@click.pass_context
def doctor(
    context: click.Context,
    checks: tuple[str, ...],
    strict: bool,
    everything: bool,
    timeout: float,
    as_json: bool,
) -> None:
    """Look everything over: settings, servers, schedule, tasks, workers. Nothing is changed by it.

    CHECKS: only those whose name begins so, say `store` or `schedule-late`. Exit code 0: no problem was
    found; 1: there is one.
    """
    from celery_singleton_lock.doctor import examine, strangers

    if unknown := strangers(checks):
        raise click.UsageError(f"no check is named so: {' '.join(unknown)}")
    findings = []
    for finding in examine(
        context.obj.app, only=checks, patience=timeout, on_check=None if as_json else _tell_progress
    ):
        findings.append(finding)
        if not as_json and (everything or finding.level.value not in ("ok", "not applicable")):
            _wipe()
            _print(finding)
    counts = Counter(each.level.value for each in findings)
    if as_json:
        told = {level: counts.get(level, 0) for level in COLOURS}
        print_json({"counts": told, "findings": [each.facts for each in findings]})
    else:
        _wipe()
        _sum_up(counts, len({each.check for each in findings}))
    failing = {"problem", *(("warning", "unknown") if strict else ())}
    if any(counts.get(level) for level in failing):
        raise SystemExit(NOT_ALL)


def _print(finding: Finding) -> None:
    level = finding.level.value
    word = "n/a" if level == "not applicable" else level
    mark = shaded(Shade(f"{word:8}", COLOURS[level]), has_colour=has_colour())
    # The title is a statement that holds where all is well; elsewhere it would mislead.
    title = f": {finding.title}" if level in ("ok", "not applicable") else ""
    click.echo(f"{mark}  {finding.check}{title}")
    for label, text in (("", finding.reason), ("Do: ", finding.remedy)):
        if text:
            click.echo(_wrapped(f"{label}{printable(text)}"))


def _wrapped(text: str) -> str:
    width = min(terminal_width(), WIDEST) if sys.stdout.isatty() else WIDEST
    return textwrap.fill(
        text,
        max(width, 40),
        initial_indent=INDENT,
        subsequent_indent=INDENT,
        # A URL, or a name to be copied, stays whole.
        break_long_words=False,
        break_on_hyphens=False,
    )


def _sum_up(counts: Counter[str], checks: int) -> None:
    told = [f"{count} {level}{'s' if count > 1 and level in ('warning', 'problem') else ''}"
            for level in COLOURS if (count := counts.get(level))]  # fmt: skip
    click.echo(f"{checks} checks: {', '.join(told)}.")


def _tell_progress(check: Check) -> None:
    """On a terminal, since some servers take their time to answer, or not to."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{check.name}...", nl=False, err=True)


def _wipe() -> None:
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
