"""Whatever is typed on the command line, there is one clear answer: a documented exit code, a word on
standard error where something is wrong, no traceback, and no table that steers the terminal."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import click
import pytest
import sqlalchemy as sa
from hypothesis import example, given
from hypothesis import strategies as st
from kombu import pools

from celery_singleton_lock import ChangeStream, open_schedule
from celery_singleton_lock.core.models import LeaseRequest
from celery_singleton_lock.ledger import required_ledger_of
from celery_singleton_lock.streams import TableChanges
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.command_line import CommandLine, shop_on
from tests.support import examples

from .test_cli_docs import COMMANDS

# Flower reads its own arguments.
FUZZED = [(path, command) for path, command in COMMANDS if path != ("flower",)]
# Otherwise they wait, for what nobody does here.
TO_END = {
    ("doctor",): ["schedule", "--timeout=0.1"],
    ("health",): ["--timeout=0.1"],
    ("log-level",): ["--timeout=0.1"],
    ("outbox", "relay"): ["--once"],
    ("schedule", "backfill"): ["--no-wait"],
}
EXIT_CODES = (0, 1, 2, 3)
few = examples(0.1)

# As Python reads arguments that are no UTF-8.
no_utf8 = st.binary(min_size=1, max_size=4).map(lambda raw: raw.decode(errors="surrogateescape"))
texts = (
    st.text(max_size=12)
    | no_utf8
    | st.sampled_from(
        ["", "-", "--", "*", "[", "\0", "\x1b[31m", "%s", "{0}", "report", "poll", "task:shop.slow"]
    )
    | st.sampled_from(["'; DROP TABLE runs", "\N{ROCKET}" * 300, "a" * 5000, "orders", "None"])
)
numbers = (
    st.integers().map(str)
    | st.floats().map(str)
    | st.sampled_from(["0", "1", "2", "1e400", "-0", "nan", "9" * 30, "9" * 5000, "٣"])
)
moments = (
    st.datetimes(timezones=st.none() | st.timezones()).map(lambda moment: moment.isoformat())
    | st.sampled_from(["now", "2h ago", "in 1w", "99999999999d ago", "in 9e9d", "0001-01-01", "ago"])
    | st.sampled_from(["9999-12-31T23:59:59", "9999-12-31T23:59:59-23:59", "2027-03-28T02:30"])
)
spans = st.sampled_from(["30", "0", "1h 30m", "0.0000001", "1e-9", "999999999d", "inf", "-5", "5 x"])
crontabs = st.sampled_from(
    ["0 6 * * 1-5", "* * * * *", "0 0 31 2 *", "*/0 * * * *", "60 * * * *", "5-1 * * * *", "* * *"]
) | st.lists(st.text("0123456789*/-,abn", max_size=4), max_size=6).map(" ".join)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
).map(json.dumps)
options_of_tasks = st.dictionaries(
    st.sampled_from(["queue", "expires", "countdown", "priority", "eta", "task_id", "x"]),
    st.none() | st.integers() | st.floats() | st.text(max_size=6),
    max_size=3,
).map(json.dumps)
waits = st.sampled_from(["0.1", "0.2", "0", "-1", "nan", "inf", "soon"])
"""Longer ones, and endless ones, are waited for, as they should be."""


def values_of(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """What it is for, more often than not."""
    if parameter.name in ("timeout", "wait", "interval"):
        return waits
    match parameter.type.name:
        case "choice":
            return st.sampled_from([*parameter.type.choices]) | texts  # type: ignore[attr-defined]
        case "moment":
            return moments | spans | texts
        case "span":
            return spans | numbers | texts
        case "crontab":
            return crontabs | texts
        case "json":
            return jsons | options_of_tasks | texts
        case kind if "range" in kind:
            return numbers | texts
    return texts | numbers


@st.composite
def arguments_of(draw: st.DrawFn, command: click.Command) -> list[str]:
    typed: list[str] = []
    for parameter in command.params:
        is_given = parameter.required or draw(st.booleans())
        if not is_given or parameter.name == "help":
            continue
        if isinstance(parameter, click.Option):
            name = draw(st.sampled_from([*parameter.opts, *parameter.secondary_opts]))
            typed.append(name if parameter.is_flag else f"{name}={draw(values_of(parameter))}")
        else:
            typed.append(draw(values_of(parameter)))
    # Now and then what no command knows, or one too many.
    return typed + draw(st.just([]) | st.just([]) | st.lists(texts, max_size=1))


@pytest.fixture(scope="module")
def line(valkey: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """With something of each kind to be found."""
    client: Any = valkey.connect()
    client.flushall()
    place: Path = tmp_path_factory.mktemp("ledger")
    url = f"sqlite:///{place}/ledger.db"
    app = shop_on(
        valkey.url,
        singleton_database_url=url,
        beat_schedule={"report": {"task": "shop.report", "schedule": 60.0}},
    )
    line = CommandLine(app)
    required_ledger_of(app).schema.upgrade()
    open_schedule(app, by="a test").add("poll", "shop.poll", 10)
    line.parts.store.acquire([LeaseRequest("task:shop.slow", "a", timedelta(hours=1))])
    engine = sa.create_engine(url)
    changes = sa.Table(
        "changes",
        sa.MetaData(),
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("account", sa.Integer, nullable=False),
        sa.Column("done_at", sa.DateTime(timezone=True)),
    )
    changes.create(engine)
    ChangeStream("orders", TableChanges(engine, changes, key="account", done="done_at"), app=app)
    yield line
    # What waits for the answers of workers would be waited for in every child that is forked later.
    pools.reset()
    line.parts.store.close()
    engine.dispose()
    client.flushall()
    client.close()


def test_who_answers_a_probe_and_not_in_http_is_told(line: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.recv(1000)
                peer.sendall(b"220 mail.example.com ESMTP\r\n")

        thread = threading.Thread(target=greet)
        thread.start()
        result = line.run("health", f"--address=127.0.0.1:{server.getsockname()[1]}")
        thread.join()
    assert (result.exit_code, result.stdout) == (1, "not ready\n")
    assert "somebody else answers there" in result.stderr


def has_one_clear_answer(line: CommandLine, arguments: list[str]) -> None:
    result = line.run(*arguments)
    told = f"{arguments}: {result.exit_code}\n{result.output}"
    assert result.exception is None or isinstance(result.exception, SystemExit), told
    assert result.exit_code in EXIT_CODES, told
    assert "Traceback" not in result.output, told
    # What Click itself says on standard error has the words of who typed them, as they are.
    assert all(each.isprintable() or each == "\n" for each in result.stdout), told
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    if "--json" in options and result.stdout:
        json.loads(result.stdout)
    elif result.exit_code > 1:
        assert result.stderr.strip(), told


@pytest.mark.parametrize(("path", "command"), FUZZED, ids=[" ".join(path) for path, _ in FUZZED])
def test_any_arguments_have_one_clear_answer(
    path: tuple[str, ...], command: click.Command, line: CommandLine
) -> None:
    # The doctor takes his time.
    @(examples(0.03) if path == ("doctor",) else few)
    @given(arguments_of(command))
    def any_arguments(typed: list[str]) -> None:
        has_one_clear_answer(line, [*path, *TO_END.get(path, []), *typed])

    any_arguments()


@few
@given(st.lists(texts, max_size=3))
@example([])
@example(["schedule", "add", "x", "shop.tick", "--every=999999999d"])
@example(["schedule", "add", "x", "shop.tick", "--every=60", "--args=" + "[" * 100_000])
@example(["schedule", "add", "x", "shop.tick", "--every=60", "--end=9999-12-31T23:59:59-23:59"])
@example(["schedule", "add", "x", "shop.tick", "--at=in 9999999d"])
@example(["schedule", "backfill", "poll", "--start=0001-01-01", "--dry-run"])
@example(["runs", "--since=9999999d ago"])
@example(["audit", "--limit=" + "9" * 30])
@example(["health", "--address=;"])
@example(["health", "--address=127.0.0.1:1", "--timeout=nan"])
@example(["unlock", "\udc80", "--reason=x"])
def test_any_words_have_one_clear_answer(line: CommandLine, typed: list[str]) -> None:
    has_one_clear_answer(line, typed)
