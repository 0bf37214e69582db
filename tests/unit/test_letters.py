"""What a dead letter says, and that the message in it is the one that came."""

from __future__ import annotations

import json
import pickle
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from celery_singleton_lock.core.errors import LetterNotSent
from celery_singleton_lock.recovery.letters import (
    LONGEST_TRACEBACK_BYTES,
    Letter,
    Outgoing,
    generation_of,
    shortened,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HEADERS = {
    "id": "run-1",
    "task": "proj.report",
    "retries": 5,
    "expires": "2026-01-01T12:00:00+00:00",
    "eta": "2026-01-01T11:00:00+00:00",
    "singleton_entry": "nightly",
    "singleton_slot": "2026-01-01T11:00:00Z",
}


def message(**changes: Any) -> Any:
    """As kombu hands one over."""
    facts: dict[str, Any] = {
        "body": b"[[], {}, {}]",
        "headers": dict(HEADERS),
        "properties": {
            "correlation_id": "run-1",
            "priority": 7,
            "expiration": "60000",
            "user_id": "me",
        },
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "delivery_info": {"exchange": "work", "routing_key": "a.b", "redelivered": True},
        "delivery_tag": "tag-1",
        "errors": [],
    }
    return SimpleNamespace(**facts | changes)


def delivered(sent: Outgoing) -> Any:
    """What a reader of the queue gets; through JSON, as on Redis."""
    return message(
        body=sent.body,
        headers=json.loads(json.dumps(sent.headers)),
        properties={**sent.properties, "priority": sent.priority},
        content_type=sent.content_type,
        content_encoding=sent.content_encoding,
        delivery_info={"exchange": sent.exchange, "routing_key": sent.routing_key},
        delivery_tag="tag-of-the-letter",
    )


def failed(told: Any = None, **facts: Any) -> Letter:
    return Letter.about(told or message(), "failed", now=NOON, **facts)


def test_letter_is_the_same_after_its_way_through_the_queue() -> None:
    letter = failed(
        exception=ValueError("no"), attempts=6, started_at=NOON, queue="work", worker="celery@host"
    )
    assert Letter.from_message(delivered(letter.to_message("dead-letters"))) == letter
    assert (letter.entry, letter.slot) == ("nightly", "2026-01-01T11:00:00Z")
    assert "ValueError: no" in letter.traceback


def test_letter_carries_the_message_as_it_was_but_for_one_header() -> None:
    sent = failed().to_message("dead-letters")
    assert sent.body == b"[[], {}, {}]"
    assert {name: sent.headers[name] for name in HEADERS} == HEADERS
    assert sent.headers.keys() - HEADERS.keys() == {"singleton_letter"}
    assert (sent.exchange, sent.routing_key) == ("", "dead-letters")
    assert sent.properties["delivery_mode"] == 2


@pytest.mark.parametrize("name", ["expiration", "user_id"])
def test_letter_has_no_property_by_which_the_broker_would_drop_or_refuse_it(name: str) -> None:
    assert name not in failed().to_message("dead-letters").properties


def test_letters_of_any_priority_keep_the_order_in_which_they_were_written() -> None:
    sent = failed().to_message("dead-letters")
    assert (sent.priority, "priority" in sent.properties) == (0, False)
    assert Letter.from_message(delivered(sent)).to_replay().priority == 7


def test_two_letters_about_one_run_have_one_id() -> None:
    first, again = failed(), failed(message(delivery_tag="other"), attempts=9)
    assert first.id == again.id


def test_letters_of_other_runs_and_generations_have_other_ids() -> None:
    later = failed(message(headers={**HEADERS, "singleton_generation": 1}))
    other = failed(message(headers={**HEADERS, "id": "run-2"}))
    assert len({failed().id, later.id, other.id}) == 3


def test_messages_without_an_id_are_told_apart_by_what_they_are() -> None:
    nameless = {"task": "proj.report"}
    one = failed(message(headers=nameless))
    assert one.run_id is None
    assert one.id == failed(message(headers=nameless)).id
    assert one.id != failed(message(headers=nameless, body=b"other")).id
    assert one.id != failed(message(headers=nameless, delivery_tag="tag-2")).id


@pytest.mark.parametrize("bad", [None, "", 7, {"a": 1}, ["x"]])
def test_an_id_that_is_no_text_is_no_id(bad: object) -> None:
    assert failed(message(headers={"id": bad})).run_id is None


def test_replay_is_the_message_with_a_fresh_start_as_the_next_generation() -> None:
    again = Letter.from_message(delivered(failed().to_message("dead-letters"))).to_replay()
    assert again.headers == {
        **HEADERS,
        "retries": 0,
        "expires": None,
        "eta": None,
        "singleton_generation": 1,
    }
    assert (again.exchange, again.routing_key, again.body) == ("work", "a.b", b"[[], {}, {}]")
    assert "priority" not in again.properties, "it is given beside them"


def test_replay_of_a_replay_counts_on() -> None:
    headers = {**HEADERS, "singleton_generation": 3}
    assert generation_of(failed(message(headers=headers)).to_replay().headers) == 4


@pytest.mark.parametrize("bad", [None, "2", -1, [3]])
def test_generation_that_is_no_count_is_none(bad: object) -> None:
    assert generation_of({"singleton_generation": bad}) == 0


def test_body_that_kombu_has_decompressed_is_not_called_compressed() -> None:
    letter = failed(message(headers={**HEADERS, "compression": "application/x-gzip"}))
    assert "compression" not in letter.to_message("dead-letters").headers
    assert "compression" not in letter.to_replay().headers


def test_body_that_cannot_be_unpacked_is_replayed_as_it_came() -> None:
    broken = message(
        headers={**HEADERS, "compression": "application/x-gzip"},
        body=b"\x1f\x8b broken",
        errors=["it cannot be unpacked"],
    )
    sent = Letter.about(broken, "undecodable").to_message("dead-letters")
    assert "compression" not in sent.headers, "or the letter could not be read either"
    again = Letter.from_message(delivered(sent)).to_replay()
    assert (again.headers["compression"], again.body) == ("application/x-gzip", b"\x1f\x8b broken")


def test_what_brokers_write_into_headers_at_a_redelivery_is_left_out() -> None:
    headers = {**HEADERS, "redelivered": True, "x-delivery-count": 3}
    assert failed(message(headers=headers)).to_replay().headers.keys() == {
        *HEADERS,
        "singleton_generation",
    }


@pytest.mark.parametrize("body", [None, "text", b"", 7, {"a": 1}])
def test_any_body_can_be_put_into_a_letter(body: object) -> None:
    expected = b"text" if body == "text" else b""
    assert failed(message(body=body)).to_message("dead-letters").body == expected


@pytest.mark.parametrize(
    "header", [None, "text", {}, {"reason": "bored"}, {"reason": "failed"}, {"reason": ["failed"]}]
)
def test_message_that_somebody_else_put_into_the_queue_is_read_as_foreign(header: object) -> None:
    letter = Letter.from_message(message(headers={**HEADERS, "singleton_letter": header}))
    assert (letter.reason, letter.run_id, letter.task) == ("foreign", "run-1", "proj.report")
    assert "singleton_letter" not in letter.to_replay().headers


def test_facts_of_the_wrong_kind_do_not_keep_the_others_from_being_read() -> None:
    facts = {"id": 3, "reason": "failed", "generation": "x", "attempts": [], "dead_at": "soon"}
    letter = Letter.from_message(message(headers={"singleton_letter": facts | {"properties": 4}}))
    assert (letter.id, letter.generation, letter.attempts) == ("3", 0, 0)


SECRET = "h4rmless-looking"
URL = f"redis://user:{SECRET}@host:6379/0"


def test_no_password_of_a_url_gets_into_a_letter() -> None:
    try:
        raise ConnectionError(f"cannot reach {URL}, nor amqp://guest:{SECRET}@host//")
    except ConnectionError as error:
        letter = failed(exception=error)
    assert "cannot reach redis://user:***@host:6379/0" in letter.exception
    assert SECRET not in json.dumps(letter.facts)


def test_password_is_hidden_in_a_traceback_that_is_given_as_text() -> None:
    letter = failed(exception=f"OSError: {URL}", traceback=f'File "x.py"\n  open("{URL}")\n')
    assert SECRET not in json.dumps(letter.facts)


def test_traceback_is_bounded_and_keeps_its_beginning_and_its_end() -> None:
    told = failed(traceback="first\n" + "ä" * 500_000 + "\nlast").traceback
    assert len(told.encode()) < LONGEST_TRACEBACK_BYTES + 100
    assert told.startswith("first\n")
    assert told.endswith("\nlast")


def test_password_is_not_left_over_where_a_text_is_shortened() -> None:
    """Hidden first, then shortened: half a URL would not be recognised."""
    for before in range(LONGEST_TRACEBACK_BYTES - 200, LONGEST_TRACEBACK_BYTES + 200, 7):
        text = "x" * (before // 4) + " " + URL + " " + "y" * LONGEST_TRACEBACK_BYTES
        assert SECRET not in failed(traceback=text).traceback


def test_headers_that_fill_the_frame_leave_no_room_for_a_traceback() -> None:
    letter = failed(message(headers={**HEADERS, "big": "x" * 110_000}), traceback="y" * 15_000)
    sent = letter.to_message("dead-letters")
    assert len(json.dumps(sent.headers)) < 128_000
    assert sent.headers["singleton_letter"]["traceback"] == ""


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_exception_whose_text_cannot_be_made_is_named() -> None:
    assert failed(exception=Mute()).exception == "Mute"


def test_text_that_is_no_unicode_can_be_sent() -> None:
    assert json.dumps(failed(exception="\udc80 bad").facts).encode()
    assert shortened("\udc80", 10) == "?"


def test_error_survives_pickling_and_says_what_to_do() -> None:
    error = pickle.loads(pickle.dumps(LetterNotSent("dead-letters", "TimeoutError: silent")))
    assert (error.queue, error.reason) == ("dead-letters", "TimeoutError: silent")
    assert "send the letter again" in str(error)
