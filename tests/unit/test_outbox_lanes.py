"""Which rows of the outbox are sent together, and which wait for each other."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from celery_singleton_lock.recovery.outbox.lanes import LANES, Pending, lane_of, rounds


def row(number: int, key: str | None, queue: str = "q") -> Pending:
    return Pending(number, key, f"run-{number}", 0, {"exchange": "", "routing_key": queue})


ROWS = st.lists(st.tuples(st.sampled_from([None, "a", "b", "c"]), st.sampled_from(["q", "r"]))).map(
    lambda drawn: [row(number, key, queue) for number, (key, queue) in enumerate(drawn)]
)


def test_a_key_is_always_in_one_lane() -> None:
    assert {lane_of("order:7") for _ in range(10)} == {lane_of("order:7")}
    assert {lane_of(f"order:{number}") for number in range(1000)} == set(range(LANES))


def test_what_has_no_key_is_spread_over_the_lanes() -> None:
    assert {lane_of(None) for _ in range(1000)} == set(range(LANES))


@given(ROWS, st.booleans())
def test_every_row_is_in_one_round_and_keys_keep_their_order(
    rows: list[Pending], one_by_one: bool
) -> None:
    sent = [each for part in rounds(rows, one_by_one=one_by_one) for each in part]
    assert sorted(each.id for each in sent) == [each.id for each in rows]
    for key in ("a", "b", "c"):
        ids = [each.id for each in sent if each.key == key]
        assert ids == sorted(ids)


@given(ROWS)
def test_rows_of_a_key_in_one_round_go_to_one_place(rows: list[Pending]) -> None:
    for part in rounds(rows, one_by_one=False):
        for key in ("a", "b", "c"):
            assert len({each.destination for each in part if each.key == key}) <= 1


@given(ROWS)
def test_each_row_of_a_key_waits_for_the_one_before_it_where_the_broker_confirms(
    rows: list[Pending],
) -> None:
    for part in rounds(rows, one_by_one=True):
        keys = sorted(each.key for each in part if each.key is not None)
        assert all(one != other for one, other in pairwise(keys))


def test_rows_without_a_key_and_of_one_place_are_sent_together() -> None:
    rows = [row(1, None), row(2, None, "r"), row(3, "a"), row(4, "a"), row(5, "b")]
    assert rounds(rows, one_by_one=False) == [rows]
