"""The page of the command line is whole: every command and option is on it, and imports stay light."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from celery_singleton_lock.cli import singleton

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "db": "ledger.md",
    "dead-letters": "dead-letters.md",
    "doctor": "doctor.md",
    "health": "monitoring.md",
    "log-level": "monitoring.md",
    "outbox": "outbox.md",
    "quorum": "redlock.md",
    "streams": "change-streams.md",
    "runs": "ledger.md",
}
"""Commands that have a page of their own."""


def commands(group: click.Group, *before: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)
        else:
            yield (*before, name), command


COMMANDS = list(commands(singleton))


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_command_and_its_options_are_on_the_page(path: tuple[str, ...], command: click.Command) -> None:
    assert path[0] in (DOCS / "cli.md").read_text()
    page = (DOCS / PAGES.get(path[0], "cli.md")).read_text()
    assert f"singleton {' '.join(path)}" in page, "an example"
    for option in command.params:
        if isinstance(option, click.Option):
            assert any(re.search(rf"{name}\b", page) for name in option.opts), option.opts
    assert command.help, "what it does"


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_options_have_a_help(path: tuple[str, ...], command: click.Command) -> None:
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.name for each in options if not each.help] == []
