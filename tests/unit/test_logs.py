"""Log lines are an event and its fields, in text and in JSON, and no event floods the log."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import celery_singleton_lock
from celery_singleton_lock.observability.log_lines import Template, read_line, read_template
from celery_singleton_lock.observability.logs import JsonFormatter, RepeatFilter
from celery_singleton_lock.recovery import audit

SOURCES = sorted(Path(celery_singleton_lock.__file__).parent.rglob("*.py"))
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
RESERVED = {"at", "level", "logger", "process", "event", "message", "hint", "traceback", "stack"}
OURS = "celery_singleton_lock.beat.engine"


def record(template: str, *args: Any, name: str = OURS, exc_info: Any = None) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "x.py", 1, template, args, exc_info)


def as_json(template: str, *args: Any, **more: Any) -> dict[str, Any]:
    text = JsonFormatter().format(record(template, *args, **more))
    assert "\n" not in text
    said = json.loads(text)
    assert isinstance(said, dict)
    return said


# What is written


def calls_of(source: Path) -> list[tuple[int, ast.Call]]:
    tree = ast.parse(source.read_text())
    return [
        (each.lineno, each)
        for each in ast.walk(tree)
        if isinstance(each, ast.Call)
        and isinstance(each.func, ast.Attribute)
        and each.func.attr in LEVELS
        and isinstance(each.func.value, ast.Name)
        and each.func.value.id == "logger"
    ]


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: "/".join(path.parts[-2:]))
def test_every_log_call_names_an_event_and_its_fields(source: Path) -> None:
    for line, call in calls_of(source):
        is_log = isinstance(call.func, ast.Attribute) and call.func.attr == "log"
        told = call.args[1 if is_log else 0]
        if isinstance(told, ast.Name):  # made of the names of fields, and tested below
            assert source.name == "audit.py"
            continue
        assert isinstance(told, ast.Constant), f"{source}:{line}"
        template = read_template(str(told.value))
        assert template is not None, f"{source}:{line}: {told.value!r}"
        values = len(call.args) - (2 if is_log else 1)
        assert values == len(template.fields) + template.event.count("%"), f"{source}:{line}"
        assert not RESERVED & {name for name, _ in template.fields}, f"{source}:{line}"


def test_template_has_event_fields_and_hint() -> None:
    read = read_template("entry_ignored entry=%r pause_s=%.2f: there is one of that name")
    assert read == Template(
        "entry_ignored", (("entry", "%r"), ("pause_s", "%.2f")), "there is one of that name"
    )


@pytest.mark.parametrize(
    "text", ["Connected to %s", "event %s", "event a=b", "event a=%s and more", "%d tasks", ""]
)
def test_other_texts_are_no_templates(text: str) -> None:
    assert read_template(text) is None


def test_values_cannot_forge_fields() -> None:
    line = read_line(record("slot_missed entry=%s reason=%r", "x reason='none' fence=1", "too old"))
    assert line is not None
    assert line.fields == {"entry": "x reason='none' fence=1", "reason": "too old"}


def test_audit_lines_have_fields(caplog: pytest.LogCaptureFixture) -> None:
    audit.record("letters_purged", "me@here", what="ids 50% of 'x'", count=2)
    [found] = caplog.records
    assert found.getMessage() == "letters_purged who='me@here' what=\"ids 50% of 'x'\" count=2"
    line = read_line(found)
    assert line is not None
    assert line.event == "letters_purged"
    assert line.fields == {"who": "me@here", "what": "ids 50% of 'x'", "count": 2}


# JSON


def test_json_line_of_ours_has_event_and_typed_fields() -> None:
    said = as_json(
        "%s entry=%r slot=%s fence=%d pause_s=%.2f waited=%s error=%r: try again",
        "run_kept",
        'a "name"\n',
        datetime(2026, 1, 1, tzinfo=UTC),
        7,
        1.23456,
        timedelta(seconds=3),
        ValueError("no"),
    )
    assert said.pop("at").endswith("+00:00")
    assert said.pop("process") > 0
    assert said == {
        "level": "warning",
        "logger": OURS,
        "event": "run_kept",
        "entry": 'a "name"\n',
        "slot": "2026-01-01T00:00:00+00:00",
        "fence": 7,
        "pause_s": 1.23456,
        "waited": 3.0,
        "error": "ValueError('no')",
        "hint": "try again",
    }


def test_json_line_of_others_has_a_message() -> None:
    said = as_json("Connected to %s", "redis://", name="celery.worker")
    assert said["message"] == "Connected to redis://"
    assert "event" not in said


def test_json_line_has_the_traceback_on_the_same_line() -> None:
    try:
        raise ValueError("no")
    except ValueError:
        said = as_json("beat_tick_failed", exc_info=sys.exc_info())
    assert said["event"] == "beat_tick_failed"
    assert said["traceback"].splitlines()[-1] == "ValueError: no"


# Repeats


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_repeats_of_an_event_are_left_out_and_counted() -> None:
    clock = Clock()
    repeats = RepeatFilter(3, clock)
    passed = [repeats.filter(record("slot_missed entry=%r", str(n))) for n in range(10)]
    assert passed == [True] * 3 + [False] * 7
    assert repeats.filter(record("run_skipped run=%s", "x")), "each event has its own measure"
    clock.now += 61
    later = record("slot_missed entry=%r", "later")
    assert repeats.filter(later)
    assert later.getMessage() == "slot_missed left_out=7 entry='later'"
    assert json.loads(JsonFormatter().format(later))["left_out"] == 7
    again = record("slot_missed entry=%r", "again")
    assert repeats.filter(again)
    assert again.getMessage() == "slot_missed entry='again'"


def test_left_out_is_told_where_the_event_is_an_argument() -> None:
    clock = Clock()
    repeats = RepeatFilter(1, clock)
    assert [repeats.filter(record("%s run=%s", "run_end_waits", "a")) for _ in range(2)] == [
        True,
        False,
    ]
    clock.now += 61
    later = record("%s run=%s", "run_end_waits", "b")
    assert repeats.filter(later)
    assert later.getMessage() == "run_end_waits left_out=1 run=b"


@pytest.mark.parametrize("name", ["celery.worker", "celery_singleton_lock.audit"])
def test_lines_of_others_and_acts_of_people_are_never_left_out(name: str) -> None:
    repeats = RepeatFilter(1)
    assert all(repeats.filter(record("letters_purged who=%r", "me", name=name)) for _ in range(10))


# In a process of Celery

PROGRAM = """
import logging
from celery import Celery
from celery_singleton_lock import {imported}
app = Celery("proj", broker="memory://")
app.conf.update(singleton_log_format={log_format!r}, singleton_log_repeats=2)
{made}
app.log.setup(loglevel="INFO")
for name in "abcd":
    logging.getLogger("celery_singleton_lock.x").warning("slot_missed entry=%r", name)
logging.getLogger("celery.worker").info("hello %s", "there")
app.log.get_default_logger("celery.task").info("from a task's module")
"""
TASK = "@app.task(base=SingletonTask, lazy=False)\ndef t(): ..."
SCHEDULER = "SingletonScheduler(app, lazy=True)"


@pytest.mark.parametrize(
    ("imported", "made"), [("SingletonTask", TASK), ("SingletonScheduler", SCHEDULER)]
)
@pytest.mark.parametrize("log_format", ["json", "text"])
def test_log_that_celery_sets_up_is_as_asked(imported: str, made: str, log_format: str) -> None:
    program = PROGRAM.format(imported=imported, made=made, log_format=log_format)
    done = subprocess.run(
        [sys.executable, "-c", program], timeout=60, capture_output=True, text=True, check=True
    )
    lines = done.stderr.splitlines()
    if log_format == "json":
        read = [json.loads(line) for line in lines]
        assert [each.get("entry") for each in read] == ["a", "b", None, None]
        assert [each.get("message") for each in read[2:]] == ["hello there", "from a task's module"]
    else:
        assert sum("slot_missed entry=" in line for line in lines) == 2
        assert sum("hello there" in line for line in lines) == 1
