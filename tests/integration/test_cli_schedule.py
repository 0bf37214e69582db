"""`celery singleton schedule`: what it prints, changes and returns."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery.schedules import crontab

from celery_singleton_lock import open_schedule
from celery_singleton_lock.beat.plan import as_position, entry_key
from celery_singleton_lock.beat.schedule import Schedule
from celery_singleton_lock.core.groups import beat_group
from celery_singleton_lock.core.models import Granted, LeaseRequest, Page, Release
from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.command_line import CommandLine, shop_on, somebody_is_there

ODD = "<script>\x1b[31m🚀"
STATIC = {
    "report": {"task": "shop.report", "schedule": crontab(minute=0), "args": ("eu",)},
    "tick": {"task": "shop.tick", "schedule": 10.0},
}


def tick() -> None:
    """A task."""


@pytest.fixture
def line(valkey: RedisServer) -> Iterator[CommandLine]:
    client: Any = valkey.connect()
    client.flushall()
    line = CommandLine(
        shop_on(valkey.url, beat_schedule=dict(STATIC), timezone="Europe/Berlin"), "schedule"
    )
    line.app.task(name="shop.tick", shared=False)(tick)
    yield line
    line.parts.store.close()
    client.flushall()
    client.close()


def schedule_of(line: CommandLine) -> Schedule:
    return open_schedule(line.app, by="a test")


def record_position(line: CommandLine, entry: str, slot: datetime) -> None:
    """As beat does."""
    position, store = as_position(slot), line.parts.store
    request = LeaseRequest(entry_key("shop", entry), "beat", timedelta(seconds=3), position=position)
    [answer] = store.acquire([request])
    assert isinstance(answer, Granted)
    store.release([Release(answer.lease, position=position, keep_for=timedelta(days=1))])


def names(line: CommandLine, *arguments: str) -> list[str]:
    return [entry["name"] for entry in line.json("list", *arguments)["entries"]]


def test_list_shows_entries_of_both_kinds_and_that_no_beat_lives(line: CommandLine) -> None:
    schedule_of(line).add(ODD, "shop.tick", 60)
    record_position(line, "tick", datetime.now(UTC))
    result = line.run("list")
    assert result.exit_code == 0
    titles, odd, report, tick = result.stdout.splitlines()
    assert titles.split() == ["ENTRY", "STATE", "NEXT", "LAST", "SLOT", "SCHEDULE", "TASK", "FROM"]
    assert "🚀" in odd
    assert odd.endswith("added")
    assert "\x1b" not in result.stdout, "a name cannot steer the terminal"
    assert " 0 * * * *  " in report
    assert tick.split()[1:3] == ["active", "in"]
    assert "No replica of beat is alive" in result.stderr


def test_list_for_machines(line: CommandLine) -> None:
    told = line.json("list", "report")
    assert list(told) == ["now", "replicas", "total", "entries", "jobs"]
    [entry] = told["entries"]
    assert list(entry) == [
        "name", "task", "schedule", "is_dynamic", "is_paused", "paused_by", "paused_why", "last_slot",
        "next_slot", "due_since", "args", "kwargs", "options",
    ]  # fmt: skip
    assert (entry["args"], entry["is_dynamic"]) == (["eu"], False)
    assert datetime.fromisoformat(entry["next_slot"]).minute == 0


def test_filters(line: CommandLine) -> None:
    schedule = schedule_of(line)
    schedule.pause("report", why="x")
    # The slot that is late is up to ten seconds later: far from a whole minute, at any time of the day.
    record_position(line, "tick", datetime.now(UTC) - timedelta(minutes=4, seconds=20))
    assert names(line) == ["report", "tick"]
    assert names(line, "t*") == ["tick"]
    assert names(line, "--task", "shop.report") == ["report"]
    assert names(line, "--paused") == ["report"]
    assert names(line, "--late") == ["tick"]
    assert "late 4m" in line.ok("list", "tick")
    assert names(line, "--limit", "1") == ["report"]
    assert "1 of 2" in line.run("list", "--limit", "1").stderr


def test_entry_is_not_late_for_the_time_in_which_it_was_paused(line: CommandLine) -> None:
    record_position(line, "tick", datetime.now(UTC) - timedelta(minutes=5))
    schedule = schedule_of(line)
    schedule.pause("tick")
    schedule.resume("tick")
    assert names(line, "--late") == []


def test_ten_thousand_entries_are_listed(line: CommandLine) -> None:
    line.app.conf.beat_schedule = {f"e{n:05}": dict(STATIC["tick"]) for n in range(10_000)}
    assert line.json("list", "--limit", "10000")["total"] == 10_000


def test_entry_that_cannot_be_read_does_not_hide_the_others(line: CommandLine) -> None:
    unknown = Page("entry:from the future", 0, '{"task": "t", "schedule": {"lunar": 1}}')
    line.parts.store.write(beat_group("shop"), [unknown])
    assert names(line) == ["report", "tick"]


def test_show_tells_the_next_slots_in_the_time_zone_of_the_app(line: CommandLine) -> None:
    schedule_of(line).pause("report", why="the partner is down")
    text = line.ok("show", "report", "--slots", "2")
    assert "the partner is down" in text
    assert "CE" in text, "CET or CEST"
    first, second = map(
        datetime.fromisoformat, line.json("show", "report", "--slots", "2")["next_slots"]
    )
    assert second - first == timedelta(hours=1)


@pytest.mark.parametrize(
    ("arguments", "schedule"),
    [
        (["--every", "30"], "<freq: 30.00 seconds>"),
        (["--every", "1h30m"], "<freq: 1.50 hours>"),
        (["--crontab", "0 6 * * 1-5"], "<crontab: 0 6 * * 1-5 (m/h/dM/MY/d)>"),
        (["--solar", "sunset 48.2 -16.4"], "<solar: sunset at latitude 48.2, longitude: -16.4>"),
        (["--at", "2099-01-31T06:00+01:00"], "<once: 2099-01-31T05:00:00+00:00>"),
        (["--at", "2099-01-31T06:00"], "<once: 2099-01-31T05:00:00+00:00>"),
    ],
)
def test_add_says_when_the_entry_is_due(line: CommandLine, arguments: list[str], schedule: str) -> None:
    result = line.run("add", "new", "shop.tick", *arguments)
    assert result.exit_code == 0, result.output
    assert "Added new: " in result.stdout
    assert "next at 20" in result.stdout
    assert "no task" not in result.stderr
    assert schedule_of(line).entry("new").schedule == schedule


def test_once_may_be_said_from_now(line: CommandLine) -> None:
    line.ok("add", "new", "shop.tick", "--at", "in 1h30m")
    [slot] = schedule_of(line).next_slots("new", 2)
    assert abs(slot - datetime.now(UTC) - timedelta(minutes=90)) < timedelta(minutes=1)
    assert line.run("add", "newer", "shop.tick", "--at", "90m").exit_code == 2


def test_crontab_is_read_in_the_time_zone_of_the_app(line: CommandLine) -> None:
    line.ok("add", "new", "shop.tick", "--crontab", "30 12 1 1 *")
    [slot] = schedule_of(line).next_slots("new", 1)
    assert (slot.hour, slot.minute) == (11, 30)


def test_add_and_change_take_what_an_entry_may_have(line: CommandLine) -> None:
    more = [
        "--args",
        '["eu"]',
        "--kwargs",
        '{"day": 1}',
        "--option",
        '{"queue": "slow"}',
        "--jitter",
        "5s",
    ]
    more += [
        "--catch-up",
        "all",
        "--catch-up-window",
        "2h",
        "--start",
        "2099-01-01",
        "--end",
        "2099-02-01",
    ]
    line.ok("add", "new", "shop.tick", "--every", "1d", *more)
    entry = schedule_of(line).contents().entries["new"]
    assert (entry.args, entry.kwargs, entry.options["queue"]) == (["eu"], {"day": 1}, "slow")
    assert (entry.catch_up, entry.catch_up_window) == ("all", timedelta(hours=2))
    assert (entry.jitter, entry.start) == (timedelta(seconds=5), datetime(2098, 12, 31, 23, tzinfo=UTC))
    told = line.json("change", "new", "--every", "2d", "--task", "shop.other")
    assert told["changed"]["task"] == "shop.other"
    changed = schedule_of(line).contents().entries["new"]
    assert (changed.args, changed.jitter) == (["eu"], timedelta(seconds=5)), "the rest stays"


def test_task_that_nobody_knows_here_is_noted(line: CommandLine) -> None:
    assert "no task shop.gone is known here" in line.run("add", "x", "shop.gone", "--every", "9").stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "x", "t"], "--every, --crontab, --solar or --at"),
        (["add", "x", "t", "--every", "9", "--at", "2099-01-01"], "one of --every"),
        (["add", "x", "t", "--every", "soon"], "1h30m"),
        (["add", "x", "t", "--every", "-1"], "no time"),
        (["add", "x", "t", "--crontab", "0 6 * *"], "4 fields"),
        (["add", "x", "t", "--crontab", "61 6 * * *"], "cannot be read"),
        (["add", "x", "t", "--solar", "sunset"], "'sunset 48.2 16.4'"),
        (["add", "x", "t", "--solar", "sunset nan 0"], "'sunset 48.2 16.4'"),
        (["add", "x", "t", "--solar", "sunset 91 0"], "latitude"),
        (["add", "x", "t", "--solar", "lunch 48 16"], "solar_noon"),
        (["add", "x", "t", "--at", "2001-01-01"], "past"),
        (["add", "x", "t", "--at", "tomorrow"], "2027-01-31"),
        (["add", "x", "t", "--every", "9", "--args", "eu"], "no JSON"),
        (["add", "x", "t", "--every", "9", "--args", "{}"], "wrong shape"),
        (["add", "tick", "t", "--every", "9"], "already"),
        (["change", "tick", "--every", "9"], "beat_schedule"),
        (["change", "tick"], "say what to change"),
        (["remove", "tick", "--yes"], "beat_schedule"),
        (["pause", "tik"], "did you mean 'tick'"),
        (
            ["backfill", "tick", "--start", "2h ago", "--end", "2099-01-01", "--yes"],
            "more than|is to come",
        ),
    ],
)
def test_wrong_usage_is_told_clearly(line: CommandLine, arguments: list[str], told: str) -> None:
    result = line.run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert any(each in result.stderr for each in told.split("|")), result.stderr


def test_pause_and_resume_and_trigger(line: CommandLine, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "celery_singleton_lock.audit"):
        assert line.ok("pause", "tick", "--reason", "too loud") == "Paused tick.\n"
        assert schedule_of(line).entry("tick").paused_why == "too loud"
        assert "Resumed tick: every 10s" in line.ok("resume", "tick")
        assert "was not paused" in line.run("resume", "tick").stderr
        told = line.json("trigger", "tick", "--reason", "to see")
    [job] = schedule_of(line).jobs()
    assert (told["triggered"], job.kind, job.entry) == ("tick", "trigger", "tick")
    assert len(told["run_id"]) == 36
    audit = [each.getMessage() for each in caplog.records]
    assert [each.split()[0] for each in audit] == [
        "entry_paused", "entry_resumed", "entry_resumed", "entry_triggered",
    ]  # fmt: skip
    assert "why='too loud'" in audit[0]


def test_remove_asks(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    line.ok("add", "new", "shop.tick", "--every", "9")
    assert line.run("remove", "new").exit_code == 2, "nobody can be asked"
    somebody_is_there(monkeypatch)
    assert line.run("remove", "new", answer="n\n").exit_code == 1
    assert "new" in names(line)
    assert line.run("remove", "new", answer="y\n").exit_code == 0
    assert "new" not in names(line)


def test_backfill_of_many_asks_and_of_few_does_not(line: CommandLine) -> None:
    result = line.run("backfill", "tick", "--start", "1h ago")
    assert result.exit_code == 2
    assert "Publish 360 slots of tick" in result.stderr
    assert schedule_of(line).jobs() == []
    assert "Would publish 360 slots" in line.ok("backfill", "tick", "--start", "1h ago", "--dry-run")
    assert len(line.json("backfill", "tick", "--start", "1m ago", "--dry-run")["slots"]) == 6
    told = line.json("backfill", "tick", "--start", "1m ago")
    assert [job.id for job in schedule_of(line).jobs()] == [told["job"]]
    assert told["slots"] == 6


def test_jobs_are_shown_and_cancelled(line: CommandLine) -> None:
    assert "No trigger or backfill is waiting" in line.run("jobs").stderr
    job = line.json("backfill", "tick", "--start", "1m ago")["job"]
    assert "1 trigger or backfill is not done yet" in line.run("list").stderr
    line.ok("trigger", "tick")
    assert "2 triggers and backfills are not done yet" in line.run("list").stderr
    rows = line.ok("jobs").splitlines()
    assert rows[1].split()[:3] == [job[:12], "backfill", "tick"]
    [shown, _] = line.json("jobs")["jobs"]
    assert (shown["id"], shown["published_up_to"], shown["kind"]) == (job, None, "backfill")
    gone = line.run("cancel", "zzz")
    assert (gone.exit_code, "it may be done" in gone.stderr) == (1, True)
    assert f"Cancelled backfill {job} of tick." in line.ok("cancel", job[:12], "--reason", "too much")
    assert [each["kind"] for each in line.json("jobs")["jobs"]] == ["trigger"]


def test_backfill_of_more_than_anybody_wants_is_refused(line: CommandLine) -> None:
    result = line.run("backfill", "tick", "--start", "1990-01-01", "--yes")
    assert (result.exit_code, "1,000,000" in result.stderr) == (2, True)


def test_backfill_without_a_beat_says_so(line: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_singleton_lock.cli.scheduling.backfilling.GIVES_UP_AFTER", 0.1)
    result = line.run("backfill", "tick", "--start", "1m ago")
    assert result.exit_code == 1
    assert "no replica of beat is alive" in result.stderr


@pytest.mark.parametrize(
    "arguments", [["list"], ["show", "tick"], ["pause", "tick"], ["trigger", "tick"]]
)
def test_store_that_is_away_gives_one_line_and_exit_code_3(arguments: list[str]) -> None:
    app = shop_on("redis://:tr0ub4dor@127.0.0.1:1/0", beat_schedule=dict(STATIC))
    result = CommandLine(app, "schedule").run(*arguments)
    assert (result.exit_code, len(result.stderr.splitlines())) == (3, 1)
    assert "tr0ub4dor" not in result.output
