"""What people do is in the log, and in the ledger, where `celery singleton audit` reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from celery_singleton_lock import open_schedule
from celery_singleton_lock.core.models import LeaseRequest
from celery_singleton_lock.ledger import open_ledger, required_ledger_of
from celery_singleton_lock.ledger.tables import AuditRow
from celery_singleton_lock.recovery.audit import acts_of, record
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.command_line import CommandLine, shop_on
from tests.integration.ledgers import DATABASES, empty_ledger, url_of
from tests.integration.letter_brokers import received

SECRET = "tr0ub4dor"


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    url = url_of(request.param, request)
    ledger = empty_ledger(url)
    ledger.schema.upgrade()
    ledger.close()
    return url


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest) -> str:
    url = url_of("sqlite", request)
    ledger = open_ledger(url)
    ledger.schema.upgrade()
    ledger.close()
    return url


@pytest.fixture
def redis_url(valkey: RedisServer) -> Iterator[str]:
    client: Any = valkey.connect()
    client.flushall()
    yield valkey.url
    client.flushall()
    client.close()


def test_act_is_read_as_it_was_written(database_url: str) -> None:
    app = shop_on("memory://", singleton_database_url=database_url)
    record("unlocked", "anna", app=app, key="task:<script>🚀", why="it hung", count=3)
    record("entry_paused", "bert@host", app=app, entry="report", why="")
    paused, unlocked = acts_of(app)
    assert (unlocked.who, unlocked.action) == ("anna", "unlocked")
    assert unlocked.facts == {"key": "task:<script>🚀", "why": "it hung", "count": 3}
    assert abs(datetime.now(UTC) - paused.at) < timedelta(minutes=1)
    assert acts_of(app, action="paused") == [paused]
    assert acts_of(app, who="anna") == [unlocked]
    assert acts_of(app, who="%") == []
    assert acts_of(app, limit=1) == [paused]
    assert acts_of(app, since=datetime.now(UTC) + timedelta(hours=1)) == []
    required_ledger_of(app).close()


def test_apps_that_share_a_database_do_not_see_each_others_acts(sqlite_url: str) -> None:
    ours = shop_on("memory://", singleton_database_url=sqlite_url)
    theirs = shop_on("memory://", singleton_database_url=sqlite_url, singleton_key_prefix="other")
    record("unlocked", "anna", app=theirs)
    assert acts_of(ours) == []


def test_whatever_people_do_is_written(sqlite_url: str, redis_url: str) -> None:
    entries = {"tick": {"task": "shop.tick", "schedule": 10.0}}
    app = shop_on(redis_url, singleton_database_url=sqlite_url, beat_schedule=entries)
    line = CommandLine(app)
    line.parts.store.acquire([LeaseRequest("task:stuck", "w1", timedelta(seconds=30))])
    for message in received(redis_url, 2):
        dead_letters_of(app).send(Letter.about(message, "failed"))
    for command in (
        "unlock task:stuck --reason w --yes",
        "dead-letters replay --id none",
        "dead-letters purge --all --yes",
        "schedule add new shop.tick --every 9 --reason w",
        "schedule change new --every 8 --reason w",
        "schedule remove new --yes --reason w",
        "schedule pause tick --reason w",
        "schedule resume tick --reason w",
        "schedule trigger tick --reason w",
        "schedule backfill tick --start=1m-ago --yes --no-wait --reason w",
        "schedule cancel JOB --reason w",
    ):
        if "JOB" in command:
            [_, backfill] = line.json("schedule", "jobs")["jobs"]
            command = command.replace("JOB", backfill["id"])
        result = line.run(*(word.replace("1m-ago", "1m ago") for word in command.split()))
        assert result.exit_code in (0, 1), result.output
    acts = list(reversed(line.json("audit")["acts"]))
    assert [act["action"] for act in acts] == [
        "unlocked", "dead_letters_replayed", "dead_letters_purged", "entry_added", "entry_changed",
        "entry_removed", "entry_paused", "entry_resumed", "entry_triggered", "entry_backfilled",
        "job_cancelled",
    ]  # fmt: skip
    assert all("@" in act["who"] for act in acts)
    assert [act["facts"]["why"] for act in acts if "why" in act["facts"]] == ["w"] * 9
    text = line.ok("audit", "--action", "unlocked", "--since", "1h ago")
    assert text.split()[:5] == ["WHEN", "WHO", "ACTION", "WHAT", "WHY"]
    assert "task:stuck" in text


def test_database_that_is_away_stops_nobody(
    redis_url: str, caplog: pytest.LogCaptureFixture, tmp_path: Any
) -> None:
    away = f"sqlite:///{tmp_path}/no/such/directory/ledger.db"
    entries = {"tick": {"task": "shop.tick", "schedule": 10.0}}
    app = shop_on(redis_url, singleton_database_url=away, beat_schedule=entries)
    with caplog.at_level(logging.WARNING, "celery_singleton_lock.audit"):
        CommandLine(app).ok("schedule", "pause", "tick", "--reason", "x")
    assert open_schedule(app).entry("tick").is_paused
    told = [each.getMessage() for each in caplog.records]
    assert told[0].startswith("entry_paused who=")
    assert told[1].startswith("audit_not_written action=entry_paused")


def test_without_a_ledger_audit_says_where_to_look() -> None:
    result = CommandLine(shop_on("memory://")).run("audit")
    assert (result.exit_code, "singleton_database_url" in result.stderr) == (2, True)


def test_ledger_without_tables_says_what_to_do(request: pytest.FixtureRequest) -> None:
    url = url_of("sqlite", request)
    result = CommandLine(shop_on("memory://", singleton_database_url=url)).run("audit")
    assert (result.exit_code, "db upgrade" in result.stderr) == (2, True)


def test_password_in_a_reason_is_not_written(sqlite_url: str, caplog: pytest.LogCaptureFixture) -> None:
    app = shop_on("memory://", singleton_database_url=sqlite_url)
    with caplog.at_level(logging.WARNING):
        record("unlocked", "anna", app=app, why=f"moved to redis://:{SECRET}@host/0")
    rows = open_ledger(sqlite_url).read(lambda at: at.execute(sa.select(AuditRow.facts)).all())
    assert SECRET not in json.dumps([row.facts for row in rows]) + caplog.text
