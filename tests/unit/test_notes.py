"""Notes that are written as JSON by hand say what json would have said."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from celery.app.task import Context

from celery_singleton_lock.core.models import WrittenNote, encode_note
from celery_singleton_lock.worker.notes import notes_of
from celery_singleton_lock.worker.options import TaskOptions

ODD = 'r"\\1\n\ud800é'


def test_notes_are_json_whatever_the_names() -> None:
    request = Context(id=ODD, hostname="celery@höst", retries=2)
    custom = {"singleton_entry": ODD, "singleton_slot": "2026-01-02T03:00:00Z"}
    run, about = notes_of("proj.täsk", request, custom, '{"body": "x"}', TaskOptions())
    seen = {"run": ODD, "task": "proj.täsk", "worker": "celery@höst"}
    assert json.loads(encode_note(about)) == dict(about) == seen
    assert json.loads(encode_note(run)) == {
        **seen,
        "entry": ODD,
        "slot": "2026-01-02T03:00:00Z",
        "attempt": 3,
        "message": {"body": "x"},
    }


@pytest.mark.parametrize("foreign", [None, 7, ["x"], {"a": 1}])
def test_header_that_is_no_text_is_told_as_it_is(foreign: object) -> None:
    run, _ = notes_of("t", Context(id="r"), {"singleton_entry": foreign}, None, TaskOptions())
    assert run["entry"] == foreign
    assert "message" not in run


def test_expected_time_is_in_both() -> None:
    options = TaskOptions(expect_within=timedelta(seconds=1.5))
    notes = notes_of("t", Context(id="r"), {}, None, options)
    assert [note["expect_within"] for note in notes] == [1.5, 1.5]


def test_written_note_is_a_mapping_like_any_other() -> None:
    note = WrittenNote('{"a":1,"b":[2]}')
    assert (note["a"], len(note), list(note), note.get("c")) == (1, 2, ["a", "b"], None)
    assert note == {"a": 1, "b": [2]}
    assert encode_note(note) == '{"a":1,"b":[2]}'
