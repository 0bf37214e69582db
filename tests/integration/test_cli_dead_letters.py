"""`celery singleton dead-letters`: what it prints, changes and returns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from click.testing import CliRunner, Result

from celery_singleton_lock.cli import singleton
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.letter_brokers import app_on, plain_letter, received

SECRET = "tr0ub4dor"


class Shop:
    """An app with letters, and the command on it."""

    def __init__(self, app: Celery, url: str) -> None:
        self.app = app
        self.letters = dead_letters_of(app)
        self.filled = [
            Letter.about(each, "failed", exception=ValueError("no\x1b[31m\nway"), attempts=3)
            for each in received(url, 3)
        ]
        for letter in self.filled:
            self.letters.send(letter)

    def run(self, *arguments: str, answer: str | None = None) -> Result:
        runner = CliRunner()
        context = SimpleNamespace(app=self.app)
        return runner.invoke(singleton, ["dead-letters", *arguments], obj=context, input=answer)

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json").stdout)


@pytest.fixture
def shop(valkey: RedisServer) -> Iterator[Shop]:
    client: Any = valkey.connect()
    client.flushall()
    shop = Shop(app_on(valkey.url), valkey.url)
    yield shop
    shop.letters.close()
    client.flushall()


def test_list_is_a_table_with_a_line_for_each_letter(shop: Shop) -> None:
    result = shop.run("list")
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].split() == [
        "LETTER",
        "DEAD",
        "AT",
        "REASON",
        "TASK",
        "RUN",
        "ATTEMPTS",
        "EXCEPTION",
    ]
    assert [line.split()[0] for line in lines[1:]] == [each.id for each in shop.filled]
    assert "\x1b" not in result.output, "a message cannot steer the terminal"


def test_list_says_when_there_are_more(shop: Shop) -> None:
    assert "more than these 2" in shop.run("list", "--limit", "2").stderr
    assert "more" not in shop.run("list", "--limit", "3").stderr
    assert "No letters" in shop.run("list", "--task", "proj.gone").stderr


def test_list_for_machines(shop: Shop) -> None:
    told = shop.json("list", "--limit", "2")
    assert told == {
        "queue": "dead-letters",
        "more": True,
        "letters": [each.facts for each in shop.filled[:2]],
    }
    assert list(told["letters"][0]) == [
        "id", "reason", "run_id", "generation", "task", "exception", "traceback", "attempts",
        "started_at", "dead_at", "entry", "slot", "queue", "worker", "exchange", "routing_key",
    ]  # fmt: skip


def test_show_tells_all_of_one_letter(shop: Shop) -> None:
    letter = shop.filled[1]
    shown = shop.run("show", letter.id)
    assert shown.exit_code == 0
    assert "ValueError: no" in shown.stdout
    assert "[[1], {}" in shown.stdout
    told = shop.json("show", letter.id)
    assert told["message"]["headers"]["id"] == "run-1"
    assert json.loads(told["message"]["body"])[0] == [1]
    assert {name: told[name] for name in letter.facts} == letter.facts


def test_body_that_is_no_text_is_shown_in_base64(shop: Shop) -> None:
    message = received(shop.app.conf.broker_url)[0]
    message.body = b"\xff\x00"
    letter = Letter.about(message, "undecodable")
    shop.letters.purge(everything=True)
    shop.letters.send(letter)
    assert shop.json("show", letter.id)["message"]["body_base64"] == "/wA="


def test_passwords_in_a_message_are_not_shown(shop: Shop) -> None:
    url = f"amqp://me:{SECRET}@host//"
    shop.app.send_task("proj.report", [url], {"to": url}, queue="work", task_id="secret")
    with shop.app.connection_for_read() as connection:
        message = shop.app.amqp.queues["work"](connection.default_channel).get(no_ack=True)
    letter = Letter.about(message, "failed", exception=OSError(url))
    shop.letters.send(letter)
    for arguments in (["show", letter.id], ["show", letter.id, "--json"], ["list"], ["list", "--json"]):
        result = shop.run(*arguments)
        assert result.exit_code == 0
        assert SECRET not in result.output, arguments


def test_show_of_no_letter_says_so(shop: Shop) -> None:
    result = shop.run("show", "no-such-id")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no letter has the id no-such-id" in result.stderr


def test_replay_of_one_and_of_all(shop: Shop) -> None:
    first, *others = shop.filled
    assert shop.json("replay", "--id", first.id) == {
        "queue": "dead-letters",
        "action": "replayed",
        "dry_run": False,
        "done": [first.id],
        "refused": [],
        "not_found": [],
    }
    result = shop.run("replay", "--all", "--rate", "1000")
    assert (result.exit_code, "replayed: 2" in result.stderr) == (0, True)
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == [each.id for each in others]
    assert shop.letters.list() == []


def test_beginning_of_an_id_is_enough_also_as_a_narrow_table_shows_it(shop: Shop) -> None:
    first, second, third = (letter.id for letter in shop.filled)
    assert shop.json("show", f"{first[:8]}...")["id"] == first
    assert shop.json("replay", first[:8], f"{second[:8]}…")["done"] == [first, second]
    assert shop.json("purge", third[:8], "--yes")["done"] == [third]


def test_beginning_of_two_ids_chooses_none(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    alike = [replace(letter, id=f"aaaa{letter.id[4:]}") for letter in shop.filled]
    monkeypatch.setattr(type(shop.letters), "list", lambda _, **__: alike)
    result = shop.run("purge", "aaaa", "--yes")
    assert (result.exit_code, "more than one id begins with aaaa" in result.stderr) == (2, True)


def test_dry_run_changes_nothing(shop: Shop) -> None:
    for action in ("replay", "purge"):
        result = shop.run(action, "--task", "proj.report", "--dry-run")
        assert (result.exit_code, "Would be" in result.stderr) == (0, True)
    assert shop.letters.list() == shop.filled


def test_id_that_is_not_there_is_told_and_the_others_are_done(shop: Shop) -> None:
    result = shop.run("replay", "--id", shop.filled[0].id, "--id", "gone", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["not_found"] == ["gone"]
    assert shop.letters.list() == shop.filled[1:]


def test_what_cannot_be_replayed_is_told_and_stays(shop: Shop) -> None:
    homeless = plain_letter(exchange="gone", routing_key="nowhere")
    shop.letters.send(homeless)
    result = shop.run("replay", "--all")
    assert result.exit_code == 1
    assert f"Not replayed: {homeless.id}: no queue takes exchange 'gone'" in result.stderr
    assert shop.letters.list() == [homeless]


def test_purge_needs_a_yes_where_there_is_nobody_to_ask(shop: Shop) -> None:
    result = shop.run("purge", "--all", answer="y\n")
    assert result.exit_code == 2
    assert "--yes" in result.stderr
    assert shop.letters.list() == shop.filled
    assert shop.run("purge", "--all", "--limit", "2", "--yes").exit_code == 0
    assert shop.letters.list() == shop.filled[2:]


@pytest.mark.parametrize(("answer", "left"), [("n\n", 3), ("y\n", 0)])
def test_purge_asks_and_does_what_is_answered(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, answer: str, left: int
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True, raising=False)
    result = shop.run("purge", "--all", answer=answer)
    assert "Remove 3 letters from dead-letters for ever?" in result.stderr
    assert result.exit_code == (1 if left else 0)
    assert len(shop.letters.list()) == left


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["replay"], "say which letters"),
        (["purge", "--yes"], "say which letters"),
        (["replay", "--all", "--id", "x"], "--all goes with neither"),
        (["purge", "--all", "--task", "x"], "--all goes with neither"),
        (["replay", "--all", "--limit", "0"], "limit"),
        (["replay", "--all", "--rate", "0"], "rate"),
        (["replay", "--all", "--rate", "fast"], "rate"),
        (["list", "--limit", "many"], "limit"),
        (["show"], "ID"),
        (["bury"], "bury"),
    ],
)
def test_wrong_usage_is_told_clearly(shop: Shop, arguments: list[str], told: str) -> None:
    result = shop.run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert told in result.stderr
    assert shop.letters.list() == shop.filled


def test_broker_that_is_away_gives_one_line_and_exit_code_3() -> None:
    app = app_on(f"redis://:{SECRET}@127.0.0.1:1/0")
    result = CliRunner().invoke(singleton, ["dead-letters", "list"], obj=SimpleNamespace(app=app))
    assert result.exit_code == 3
    assert len(result.stderr.splitlines()) == 1
    assert SECRET not in result.output


def test_setting_that_cannot_work_gives_one_line_and_exit_code_2() -> None:
    app = app_on("redis://127.0.0.1:1/0", singleton_max_deliverys=3)
    result = CliRunner().invoke(singleton, ["dead-letters", "list"], obj=SimpleNamespace(app=app))
    assert result.exit_code == 2
    assert "did you mean singleton_max_deliveries" in result.stderr


PROJ = """
import os
from celery import Celery
app = Celery("proj", broker=os.environ["BROKER"])
"""


def test_command_is_found_by_celery_itself_and_its_acts_are_audited(
    shop: Shop, valkey: RedisServer, tmp_path: Path
) -> None:
    (tmp_path / "proj.py").write_text(PROJ)

    def celery(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "proj",
            "singleton",
            "dead-letters",
            *arguments,
        ]
        environment = os.environ | {"BROKER": valkey.url}
        return subprocess.run(
            command,
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    listed = celery("list", "--json")
    assert [each["id"] for each in json.loads(listed.stdout)["letters"]] == [
        each.id for each in shop.filled
    ]
    purged = celery("purge", "--all", "--yes")
    assert purged.returncode == 0, purged.stderr
    assert "dead_letters_purged who=" in purged.stderr
    assert "count=3" in purged.stderr
    assert celery("list", "--json").returncode == 0
    assert shop.letters.list() == []


def test_every_celery_command_imports_little_for_it() -> None:
    program = """
import sys
import click
import celery_singleton_lock.cli
heavy = {"redis", "sqlalchemy", "celery_singleton_lock.recovery.dead_letters"} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
