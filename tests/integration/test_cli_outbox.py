"""`celery singleton outbox`: what is waiting, and a relay in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from click.testing import CliRunner, Result

from celery_singleton_lock import outbox
from celery_singleton_lock.cli import singleton
from celery_singleton_lock.testing.servers import RedisServer

from .outboxes import Shop

PROJECT = """
import os
from celery import Celery
app = Celery("shop", broker=os.environ["BROKER"])
app.conf.update(singleton_outbox_url=os.environ["DATABASE"], singleton_key_prefix=os.environ["PREFIX"])
"""


@pytest.fixture
def shop(tmp_path: Path, valkey: RedisServer) -> Any:
    shop = Shop(f"sqlite:///{tmp_path}/shop.db", valkey.url)
    metadata = sa.MetaData()
    outbox.add_tables(metadata)
    metadata.create_all(shop.engine)
    yield shop
    shop.close()


def command(shop: Shop, *arguments: str) -> Result:
    return CliRunner().invoke(singleton, ["outbox", *arguments], obj=SimpleNamespace(app=shop.app))


def test_status_counts_what_waits(shop: Shop) -> None:
    shop.send(1, 2)
    shop.drain()
    shop.send(3)
    answer = command(shop, "status", "--json")
    assert answer.exit_code == 0, answer.output
    told = json.loads(answer.stdout)
    assert {name: told[name] for name in ("pending", "held", "dead", "published")} == {
        "pending": 1, "held": 0, "dead": 0, "published": 2,
    }  # fmt: skip
    assert 0 <= told["oldest_seconds"] < 60
    assert "pending         1" in command(shop, "status").stdout
    shop.drain()
    assert json.loads(command(shop, "status", "--json").stdout)["oldest_seconds"] is None


def test_rows_are_listed_oldest_first(shop: Shop) -> None:
    shop.send(1, 2, key="a\x1b[31m")
    shop.send(3)
    told = json.loads(command(shop, "list", "--json", "--limit", "2").stdout)
    assert told["more"] is True
    assert [row["state"] for row in told["rows"]] == ["pending", "pending"]
    assert told["rows"][0]["id"] < told["rows"][1]["id"]
    assert told["rows"][0]["task"] == "shop.add"
    table = command(shop, "list")
    assert table.stdout.count("shop.add") == 3
    assert "\x1b[31m" not in table.stdout
    assert command(shop, "list", "--key", "a\x1b[31m").stdout.count("shop.add") == 2
    assert "Nothing of key b is waiting" in command(shop, "list", "--key", "b").stderr
    assert "Nothing is dead" in command(shop, "list", "--state", "dead").stderr


def test_relay_once_publishes_what_is_pending(shop: Shop) -> None:
    shop.send(1, 2)
    assert "Published: 2" in command(shop, "relay", "--once").stderr
    assert sorted(shop.received()) == [1, 2]


def test_database_without_an_outbox_is_told_of(shop: Shop) -> None:
    with shop.engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE singleton_outbox"))
    for arguments in (["status"], ["relay", "--once"], ["relay"]):
        answer = command(shop, *arguments)
        assert answer.exit_code == 2
        assert "db upgrade" in answer.stderr


def test_relay_runs_until_it_is_told_to_end(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "proj.py").write_text(PROJECT)
    environment = {
        "BROKER": shop.broker_url,
        "DATABASE": str(shop.engine.url),
        "PREFIX": shop.prefix,
    }
    shop.send(1)
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "proj", "singleton", "outbox", "relay"],
            cwd=tmp_path,
            env=os.environ | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 30
        while shop.states() != [(1, "published")]:
            assert process.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
    assert shop.received() == [1]
