"""`celery singleton runs`: what it prints, and what it finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock.core import facts
from celery_singleton_lock.ledger import required_ledger_of
from celery_singleton_lock.ledger.happenings import News
from celery_singleton_lock.ledger.losses import Gap
from celery_singleton_lock.ledger.writing import write_news

from .command_line import CommandLine


@pytest.fixture
def shop(tmp_path: Path) -> CommandLine:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.singleton_database_url = f"sqlite:///{tmp_path}/shop.db"
    ledger = required_ledger_of(app)
    ledger.schema.upgrade()
    now, news = datetime.now(UTC), News()
    for number in range(6):
        slot = now - timedelta(hours=number)
        run = facts.RunName(f"run-{number}", "shop.report", f"entry-{number % 2}", slot)
        if number == 5:
            news.add(facts.SlotMissed(at=now, run=run, reason="too old"))
            continue
        fence = int(slot.timestamp() * 1_000_000)
        about: Any = {"run": run, "worker": "w1", "attempt": 1, "fence": fence}
        news.add(facts.RunStarted(at=slot + timedelta(seconds=2), takeovers=0, **about))
        error = "ValueError: \x1b[31mno\n" if number == 2 else None
        outcome = "failed" if error else "succeeded"
        took = timedelta(seconds=10 * number)
        news.add(facts.RunEnded(at=slot + took, outcome=outcome, took=took, error=error, **about))
    write_news(ledger, news)
    return CommandLine(app, "runs")


def test_runs_are_a_table_newest_first(shop: CommandLine) -> None:
    titles, *lines = shop.ok().splitlines()
    assert titles.split()[:4] == ["RUN", "ENTRY", "TASK", "DUE"]
    assert [line.split()[0] for line in lines] == [f"run-{number}" for number in range(6)]
    assert "\x1b" not in shop.ok()


def test_runs_are_chosen_by_entry_status_task_and_time(shop: CommandLine) -> None:
    def found(*options: str) -> list[str]:
        return [each["run_id"] for each in shop.json(*options)["runs"]]

    assert found("--entry", "entry-1") == ["run-1", "run-3", "run-5"]
    assert found("--status", "failed", "--status", "missed") == ["run-2", "run-5"]
    assert found("--task", "other") == []
    assert found("--since", "90m") == ["run-0", "run-1"]
    assert found("--until", (datetime.now(UTC) - timedelta(hours=3.5)).isoformat()) == [
        "run-4",
        "run-5",
    ]
    assert found("--slowest", "--limit", "2") == ["run-4", "run-3"]


def test_pages_go_on_where_the_last_one_ended(shop: CommandLine) -> None:
    first = shop.json("--limit", "4")
    rest = shop.json("--limit", "4", "--after", first["next"])
    assert [each["run_id"] for each in rest["runs"]] == ["run-4", "run-5"]
    assert rest["next"] is None


def test_what_history_lacks_is_said_below_the_runs_of_that_time(shop: CommandLine) -> None:
    assert shop.json()["gaps"] == []
    began = datetime.now(UTC) - timedelta(hours=2)
    gap = Gap("web:7", began, began + timedelta(minutes=3), 250)
    write_news(required_ledger_of(shop.app), News(gaps=[gap]))
    assert "History lacks 250 facts of web:7" in shop.run().stderr
    assert [each["facts"] for each in shop.json()["gaps"]] == [250]
    assert shop.json("--since", "1h")["gaps"] == []


def test_one_run_is_shown_with_its_attempts(shop: CommandLine) -> None:
    shown = shop.ok("run-2")
    assert "ValueError:" in shown
    assert "OUTCOME" in shown
    [attempt] = shop.json("run-2")["attempts"]
    assert (attempt["outcome"], attempt["duration_s"]) == ("failed", 20.0)


def test_beginning_of_the_id_of_a_run_is_enough(shop: CommandLine) -> None:
    ids = ["5b479a93-0000-5000-8000-000000000001", "5b47ffff-0000-5000-8000-000000000002"]
    at, news = datetime.now(UTC), News()
    for id_ in ids:
        run = facts.RunName(id_, "shop.report", "e", at)
        news.add(facts.SlotsPublished(at=at, runs=(run,), replica="b"))
    write_news(required_ledger_of(shop.app), news)
    for given in ("5b479a93", "5b479...", "5b47f", ids[1]):
        assert shop.json(given)["run_id"] == ids["f" in given]
    assert shop.run("5b47").exit_code == 2
    assert shop.run("5b48").exit_code == 1
    assert shop.run("run").exit_code == 1, "no uuid begins so"


def test_what_is_wrong_is_said_in_a_line(shop: CommandLine, tmp_path: Path) -> None:
    assert "knows no run" in shop.run("nobody").output
    assert shop.run("nobody").exit_code == 1
    assert shop.run("--since", "yesterday").exit_code == 2
    assert shop.run("--after", "nowhere").exit_code == 2
    shop.app.conf.singleton_database_url = None
    bare = Celery("bare", broker="memory://", set_as_current=False)
    assert "set singleton_database_url" in CommandLine(bare, "runs").run().output
    bare = Celery("bare", broker="memory://", set_as_current=False)
    bare.conf.singleton_database_url = f"sqlite:///{tmp_path}/empty.db"
    assert "singleton db upgrade" in CommandLine(bare, "runs").run().output
