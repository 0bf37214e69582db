"""Whatever others wrote, on purpose or not, is read without an exception that nobody expects: headers,
records, notes, pages of the book, letters."""

from __future__ import annotations

import json
from datetime import datetime
from types import SimpleNamespace
from typing import Any

from celery.app.task import Context
from hypothesis import example, given
from hypothesis import strategies as st

from celery_singleton_lock import Run, Skipped
from celery_singleton_lock.beat import book
from celery_singleton_lock.beat.publisher import Publisher
from celery_singleton_lock.beat.roster import Roster
from celery_singleton_lock.core import headers as names
from celery_singleton_lock.core.headers import read_slot
from celery_singleton_lock.core.models import FINISHED, Page, decode_note
from celery_singleton_lock.recovery.letters import REASONS, Letter
from celery_singleton_lock.recovery.message_note import is_message
from celery_singleton_lock.worker.asking import is_in_canvas, seen_run
from celery_singleton_lock.worker.flaws import flaw_of

from .test_reaper import begin_run, message_of
from .world import SETTINGS, START, World, new_app

DEEP = "[" * 100_000
"""Deeper than a parser goes."""

texts = st.text(max_size=20) | st.sampled_from(
    [
        "2026-11-18T12:00:00Z",
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59+00:00",
        "once",
        "\0",
        "<script>",
    ]
)
numbers = st.integers() | st.floats(allow_nan=True) | st.sampled_from([1e300, -1, 2**64])
plain = st.none() | st.booleans() | numbers | texts


def mappings(names: list[str], values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """With the names that are looked for more often than not."""
    return st.dictionaries(st.sampled_from(names) | texts, values, max_size=6)


jsons = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip
HEADERS = [
    "id",
    "task",
    "retries",
    "timelimit",
    names.ENTRY,
    names.SLOT,
    names.GENERATION,
    names.LETTER,
]
header_sets = mappings(HEADERS, jsons) | jsons


def message(headers: Any, payload: Any = None, **more: Any) -> Any:
    facts: dict[str, Any] = {
        "body": json.dumps(payload).encode(),
        "payload": payload,
        "headers": headers,
        "properties": {},
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_info": {},
        "delivery_tag": 1,
        "errors": [],
    }
    return SimpleNamespace(**facts | more)


@given(jsons | st.datetimes().map(datetime.isoformat))
@example("2026-05-01T12:00:00")
@example("2026-05-01T12:00:00+00:00")
def test_slot_of_a_header_is_a_time_in_a_zone_or_nothing(value: Any) -> None:
    slot = read_slot(value)
    assert slot is None or slot.tzinfo is not None


@given(header_sets, jsons)
def test_any_message_has_a_flaw_or_none(headers: Any, payload: Any) -> None:
    assert isinstance(flaw_of(message(headers, payload)), str | None)


LETTER_FACTS = [
    "id",
    "reason",
    "run_id",
    "generation",
    "attempts",
    "started_at",
    "dead_at",
    "properties",
]


@given(
    header_sets,
    mappings(LETTER_FACTS, jsons),
    st.sampled_from(REASONS) | jsons,
    mappings(["priority"], jsons),
)
def test_anything_in_the_queue_of_letters_is_a_letter(
    headers: Any, facts: Any, reason: Any, properties: Any
) -> None:
    if isinstance(headers, dict):
        headers = headers | {names.LETTER: facts | {"reason": reason}}
    letter = Letter.from_message(message(headers, properties=properties))
    assert letter.id
    json.dumps(letter.facts)
    again = Letter.from_message(message(letter.to_message("dead-letters").headers))
    assert again.id == letter.id


@given(st.binary(max_size=60) | jsons.map(lambda value: json.dumps(value).encode()))
@example(DEEP.encode())
def test_any_note_is_an_object_for_people(raw: bytes) -> None:
    assert isinstance(decode_note(raw), dict)


@given(jsons)
def test_any_result_is_a_skip_or_not(value: Any) -> None:
    assert isinstance(Skipped.read(value), Skipped | None)


@given(header_sets.filter(lambda headers: isinstance(headers, dict)))
def test_run_is_seen_whatever_its_headers_are(headers: dict[str, Any]) -> None:
    request = Context({"id": "1", "headers": headers, "retries": 0})
    assert isinstance(seen_run("t", request), Run)
    assert is_in_canvas(request) is False


SCHEDULES = ["every", "relative", "once", "crontab", "solar"]
ENTRIES = ["task", "args", "kwargs", "options", "start", "end", "jitter", "catch_up", "catch_up_window"]
definitions = st.builds(
    lambda said, schedule: said | {"schedule": schedule},
    mappings(ENTRIES, jsons),
    mappings(SCHEDULES, jsons) | jsons,
)


@given(definitions)
@example({"task": "t", "schedule": {"every": 1e300, "relative": False}})
@example({"task": "t", "schedule": {"every": 0, "relative": False}})
@example({"task": "t", "schedule": {"every": 60, "relative": False}, "catch_up_window": "soon"})
def test_definition_that_makes_no_sense_is_no_entry_and_no_error(definition: dict[str, Any]) -> None:
    app = new_app({})
    entries, _ = Roster(app, SETTINGS, {}).turn(book.Defined("e", definition, START))
    for entry in entries:
        entry.grid.next(START)


@given(
    st.sampled_from(["entry:e", "pause:e", "config:e", "job:1", "job:", "what:e", "e"]),
    st.integers(0, FINISHED),
    texts | (mappings(["kind", "entry", "start", "paused", "mark"], jsons) | jsons).map(json.dumps),
)
@example("entry:e", 1, DEEP)
def test_any_page_of_the_book_is_a_statement_or_nothing(name: str, version: int, text: str) -> None:
    book.read_page(Page(name, version, text))


@given(mappings(["message", "run", "task", "entry", "slot", "worker"], jsons))
def test_record_of_a_dead_run_stops_nobody_whatever_its_note_is(note: dict[str, Any]) -> None:
    world = World()
    world.add_replica({})
    world.run(2)
    begin_run(world, "run:1", **note | {"message": note.get("message")})
    begin_run(world, "run:2")
    world.run(40)
    assert message_of("run:2") in world.published_again


NOTES = list(message_of("1"))


@given(mappings(NOTES, jsons) | jsons, mappings(NOTES, jsons))
def test_what_is_taken_for_a_message_can_be_published(note: Any, changes: dict[str, Any]) -> None:
    app = new_app({})
    app.conf.broker_url = "memory://"
    publisher = Publisher(app, lambda name: None, lambda due: None)
    notes = [note, message_of("1") | changes, message_of("1")]
    sound: list[Any] = [each for each in notes if is_message(each)]
    assert message_of("1") in sound
    publisher.publish_again(sound)
