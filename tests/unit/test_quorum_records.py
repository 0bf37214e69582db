"""What several nodes know of one record, as one."""

from __future__ import annotations

from celery_singleton_lock.core.models import RecordState
from celery_singleton_lock.leases.redlock.records import Known, record_of
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
