"""What several nodes know of one record, as one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from celery_singleton_lock.core.models import RecordState
from celery_singleton_lock.leases.redlock.records import Known, reading_of, record_of
from celery_singleton_lock.leases.redlock.rounds import Size

NOW = 1_000_000_000_000_000
FIVE = Size(5)
UNKNOWN = Known(NOW, [False] * 10, 0)


def known(
    fence: int, until: int, owner: str = "holder", *, pending: bool = False, position: str = ""
) -> Known:
    fields = [owner, str(NOW + fence), str(until), str(NOW), position, "", "", "", "", "{}"]
    return Known(NOW, fields, int(pending))


HELD = known(5, NOW + 1000)
RAN_OUT = known(5, NOW - 1000)
IN_VAIN = known(9, 0, "rival", pending=True)
STILL_RUN_OUT = known(9, 1, "rival", pending=True)
"""A rival asked in vain after the lease had run out."""


def test_no_node_knows_it() -> None:
    assert record_of(FIVE, "k", [UNKNOWN] * 5) is None


def test_who_asked_in_vain_is_no_holder() -> None:
    record = record_of(FIVE, "k", [HELD, IN_VAIN, HELD, IN_VAIN, HELD])
    assert record is not None
    assert (record.state, record.owner) == (RecordState.HELD, "holder")


def test_lease_that_ran_out_is_seen_though_a_rival_asked_in_vain() -> None:
    record = record_of(FIVE, "k", [RAN_OUT, STILL_RUN_OUT, RAN_OUT, IN_VAIN, RAN_OUT])
    assert record is not None
    assert (record.state, record.fence) == (RecordState.EXPIRED, NOW + 5)


def test_grant_is_seen_of_as_many_nodes_as_every_majority_has_of_those_that_answer() -> None:
    older = known(2, NOW - 5000, "older")
    for told in ([HELD] * 3 + [older] * 2, [HELD] * 2 + [older] * 2, [HELD] + [older] * 2):
        record = record_of(FIVE, "k", told)
        assert record is not None
        assert record.owner == "holder"


def test_given_back_on_one_node_is_given_back() -> None:
    record = record_of(FIVE, "k", [HELD, HELD, known(5, 0), HELD, HELD])
    assert record is not None
    assert record.state is RecordState.FREE


def test_position_of_any_node_counts() -> None:
    record = record_of(FIVE, "k", [HELD, HELD, HELD, known(2, 0, "older", position="7"), UNKNOWN])
    assert record is not None
    assert (record.owner, record.position) == ("holder", 7)


def test_all_that_a_node_knows_is_told() -> None:
    fields = [
        *("w1@web", str(NOW + 5), str(NOW + 2_000_000), str(NOW - 3_000_000)),
        *("7", "retried", "run-1", str(NOW + 9_000_000), "2", '{"task": "report"}'),
    ]
    record = record_of(FIVE, "k", [Known(NOW, fields, 0)] * 3)
    assert record is not None
    assert (record.key, record.owner, record.fence) == ("k", "w1@web", NOW + 5)
    assert (record.position, record.outcome, record.takeovers) == (7, "retried", 2)
    assert record.note == {"task": "report"}
    assert record.remaining == timedelta(seconds=2)
    assert record.since == datetime.fromtimestamp(NOW / 1e6, UTC) - timedelta(seconds=3)


def test_what_a_node_knows_of_a_park_is_told() -> None:
    fields = ["", str(NOW + 5), "0", str(NOW), "", "", "run-1", str(NOW + 9_000_000), "", ""]
    record = record_of(FIVE, "k", [Known(NOW, fields, 0)] * 3)
    assert record is not None
    assert (record.state, record.heir) == (RecordState.PARKED, "run-1")
    assert (record.position, record.outcome, record.takeovers, record.note) == (None, None, 0, {})


def test_reading_has_the_newest_of_each_page_and_a_revision_that_a_majority_has() -> None:
    told: list[tuple[int, list[Any]]] = [
        (9, ["a", 4, "old", "b", 5, "b"]),
        (7, ["a", 6, "new"]),
        (8, ["a", 4, "old", "gone", 3, False]),
        (2, []),
    ]
    reading = reading_of(FIVE, told)
    assert reading.revision == 7
    pages = {page.name: (page.version, page.text) for page in reading.pages}
    assert pages == {"a": (6, "new"), "b": (5, "b"), "gone": (3, None)}
