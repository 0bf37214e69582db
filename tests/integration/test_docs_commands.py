"""Command lines in the docs are right: each is read by the command that it names, and most are run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from celery import Celery
from celery.schedules import crontab

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.cli import singleton
from celery_singleton_lock.testing.servers import RedisServer

from .command_line import CommandLine, shop_on, somebody_is_there
from .workers import define

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for pattern in ("README.md", "docs/**/*.md", "deploy/**/*.y*ml", "docker-compose.yml")
    for path in ROOT.glob(pattern)
    if "_build" not in path.parts
)
ON_A_LINE = re.compile(r"celery (?:-A \S+ )?singleton (?P<rest>[^`\n]+)")
IN_A_LIST = re.compile(r'"celery", (?:"-A", "\w+", )?"singleton"(?P<rest>(?:, "[^"]*")+)')
COMMENT = re.compile(r"\s{2,}#.*$")

NOT_RUN = ("watch", "flower", "outbox relay", "quorum", "health", "log-level")
"""These need a terminal, do not end, or have nobody to ask here."""


def lines_of(path: Path) -> Iterator[str]:
    text = path.read_text()
    for found in ON_A_LINE.finditer(text):
        yield COMMENT.sub("", found["rest"]).strip()
    for found in IN_A_LIST.finditer(text):
        yield shlex.join(re.findall(r'"([^"]*)"', found["rest"]))


LINES = sorted({(line, str(path.relative_to(ROOT))) for path in SOURCES for line in lines_of(path)})
QUOTED = re.compile(r""""[^"]*"|'[^']*'""")
SHAPES = [each for each in LINES if re.search(r"[\[(|]|\.\.\.", QUOTED.sub("", each[0]))]
"""What a command takes, written as people write it: ``[--limit 50]``."""
WHOLE = [each for each in LINES if each not in SHAPES]
TIMELY = {"--at 2027-01-31T06:00": '--at "in 30d"', "--start 2027-01-30": '--start "2d ago"'}
"""Dates of the docs, as they are meant: one is to come, one is over."""


def found(words: list[str]) -> tuple[click.Command, list[str], list[str]]:
    """The command, its path, and the words that are left for it."""
    command: click.Command = singleton
    path: list[str] = []
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no command {' '.join([*path, words[0]])!r}"
        command = command.commands[words[0]]
        path.append(words[0])
        words = words[1:]
    return command, path, words


def test_docs_have_commands() -> None:
    assert len(WHOLE) > 40
    assert len({page for _, page in LINES}) > 15


@pytest.mark.parametrize(("line", "page"), SHAPES)
def test_shape_names_a_command_and_options_that_are_there(line: str, page: str) -> None:
    if line.startswith("..."):
        return
    words = re.sub(r"[\[\]()|]", " ", line).split()
    command, _, _ = found([word for word in words if word != "..."])
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
    assert set(re.findall(r"--[\w-]+", line)) <= known | {"--help"}


@pytest.mark.parametrize(("line", "page"), WHOLE)
def test_line_is_read_by_its_command(line: str, page: str) -> None:
    command, path, words = found(shlex.split(line))
    assert not isinstance(command, click.Group) or not words
    if not isinstance(command, click.Group):
        with command.make_context(path[-1], list(words), obj=None):
            """Every word was taken, and each value is of its kind."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    ledger = f"sqlite:///{tmp_path_factory.mktemp('ledger')}/ledger.db"
    entry: dict[str, Any] = {"task": "shop.report", "schedule": crontab(minute="0")}
    with RedisServer() as server:
        app = shop_on(
            server.url,
            beat_schedule={"report": entry, "nightly": entry, "ENTRY": entry},
            beat_scheduler="celery_singleton_lock:SingletonScheduler",
            singleton_database_url=ledger,
        )
        _employ(app)
        line = CommandLine(app)
        line.ok("db", "upgrade")
        yield line
        line.parts.store.close()


def _employ(app: Celery) -> None:
    @define(app, base=SingletonTask, name="shop.report")
    def report() -> None: ...


RUN = [line for line in dict.fromkeys(line for line, _ in WHOLE) if not line.startswith(NOT_RUN)]


def test_lines_do_on_a_real_app_what_they_can(
    shop: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one adds, another one changes. What it names may not be there: then it says so. None is told
    that it was used wrongly."""
    somebody_is_there(monkeypatch)
    wrong = {}
    for line in RUN:
        meant = line
        for written, timely in TIMELY.items():
            meant = meant.replace(written, timely)
        result = shop.run(*shlex.split(meant), answer="y\n")
        is_error = not isinstance(result.exception, SystemExit | None)
        if result.exit_code not in (0, 1) or is_error:
            wrong[line] = result.output
    assert wrong == {}
