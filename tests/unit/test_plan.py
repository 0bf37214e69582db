"""Which slots are published after a gap, and which are reported missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_singleton_lock.beat.membership import rank
from celery_singleton_lock.beat.plan import (
    MOST_TOLD_BEYOND_THE_WINDOW,
    CatchUp,
    CatchUpRule,
    as_position,
    as_slot,
    entry_key,
    plan,
    run_id,
)
from celery_singleton_lock.beat.slots import IntervalGrid

NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTES = IntervalGrid(timedelta(minutes=1))


def rule(policy: CatchUp, window_minutes: int = 60) -> CatchUpRule:
    return CatchUpRule(policy, timedelta(minutes=window_minutes), timedelta(seconds=15))


def minutes_ago(*minutes: int) -> list[datetime]:
    return [NOON - timedelta(minutes=each) for each in minutes]


@pytest.mark.parametrize(
    ("policy", "publish", "missed"),
    [
        ("none", minutes_ago(0), minutes_ago(4, 3, 2, 1)),
        ("latest", minutes_ago(0), minutes_ago(4, 3, 2, 1)),
        ("all", minutes_ago(4, 3, 2, 1, 0), []),
    ],
)
def test_slot_that_is_only_late_is_always_published(
    policy: CatchUp, publish: list[datetime], missed: list[datetime]
) -> None:
    planned = plan(MINUTES, NOON - timedelta(minutes=5), NOON + timedelta(seconds=10), rule(policy))
    assert (planned.publish, planned.missed) == (publish, missed)
    assert planned.position == NOON


@pytest.mark.parametrize(
    ("policy", "publish", "missed"),
    [
        ("none", [], minutes_ago(2, 1, 0)),
        ("latest", minutes_ago(0), minutes_ago(2, 1)),
        ("all", minutes_ago(2, 1, 0), []),
    ],
)
def test_old_slots_are_caught_up_as_the_policy_says(
    policy: CatchUp, publish: list[datetime], missed: list[datetime]
) -> None:
    planned = plan(MINUTES, NOON - timedelta(minutes=3), NOON + timedelta(seconds=40), rule(policy))
    assert (planned.publish, planned.missed) == (publish, missed)
    assert planned.caught_up == len(publish)


def test_slots_that_are_only_late_fill_no_gap() -> None:
    planned = plan(MINUTES, NOON - timedelta(minutes=3), NOON, rule("all"))
    assert planned.publish == minutes_ago(2, 1, 0)
    assert planned.caught_up == 2


def test_slots_beyond_the_window_are_passed_over() -> None:
    planned = plan(MINUTES, NOON - timedelta(days=900), NOON, rule("all", window_minutes=2))
    assert planned.publish == minutes_ago(1, 0)
    assert len(planned.missed) == MOST_TOLD_BEYOND_THE_WINDOW


def test_position_follows_the_window_where_no_slot_is_left_in_it() -> None:
    daily = IntervalGrid(timedelta(days=1))
    planned = plan(daily, NOON - timedelta(days=2), NOON, rule("latest"))
    assert planned.publish == []
    assert len(planned.missed) == 2
    assert planned.position == NOON - timedelta(hours=1)


def test_entries_of_two_apps_do_not_share_a_record() -> None:
    assert len({entry_key(app, entry) for app, entry in [("a", "b:c"), ("a:b", "c"), ("", "c")]}) == 3


def test_nothing_due_leaves_the_position_where_it_is() -> None:
    planned = plan(MINUTES, NOON, NOON + timedelta(seconds=59), rule("all"))
    assert (planned.publish, planned.missed, planned.position) == ([], [], NOON)


@given(st.integers(0, 2**52))
def test_positions_and_slots_are_two_names_of_one_time(position: int) -> None:
    assert as_position(as_slot(position)) == position


def test_run_id_is_alike_for_all_and_different_for_each_slot() -> None:
    ids = {
        run_id(app, entry, slot)
        for app in ("a", "b")
        for entry in ("x", "y")
        for slot in minutes_ago(0, 1)
    }
    assert len(ids) == 8
    assert run_id("a", "x", NOON) == run_id("a", "x", NOON.astimezone())


@given(st.sets(st.text(min_size=1), min_size=1, max_size=9), st.text())
def test_ranks_are_a_permutation(members: set[str], entry: str) -> None:
    ranks = [rank(member, tuple(members), entry) for member in members]
    assert sorted(ranks) == list(range(len(members)))


def test_a_member_that_goes_hands_over_only_its_own_entries() -> None:
    members = tuple(f"replica {n}" for n in range(5))
    left = members[:-1]
    for number in range(500):
        entry = f"entry {number}"
        first = min(members, key=lambda member: rank(member, members, entry))
        if first in left:
            assert rank(first, left, entry) == 0


def test_replica_that_is_no_member_comes_last() -> None:
    assert rank("stranger", ("a", "b"), "entry") == 2


def test_no_more_slots_are_planned_than_asked_for_and_the_rest_comes_after_them() -> None:
    late = CatchUpRule("latest", timedelta(hours=1), timedelta(hours=1))
    for each in (late, rule("all")):
        planned = plan(MINUTES, NOON - timedelta(minutes=5), NOON, each, at_most=2)
        assert planned.publish == minutes_ago(4, 3)
        assert planned.position == NOON - timedelta(minutes=3)
        assert planned.next_slot == NOON - timedelta(minutes=2)


def test_of_many_old_slots_the_latest_is_published_however_few_are_asked_for() -> None:
    now = NOON + timedelta(seconds=30)
    planned = plan(MINUTES, NOON - timedelta(minutes=5), now, rule("latest"), at_most=2)
    assert planned.publish == minutes_ago(0)
    assert planned.missed == minutes_ago(4, 3, 2, 1)


def test_slot_that_is_put_off_is_the_next_one() -> None:
    planned = plan(
        MINUTES, NOON - timedelta(minutes=3), NOON, rule("all"), is_due=lambda slot: slot < NOON
    )
    assert planned.publish == minutes_ago(2, 1)
    assert (planned.position, planned.next_slot) == (NOON - timedelta(minutes=1), NOON)
    nothing = plan(MINUTES, NOON, NOON + timedelta(minutes=1), rule("all"), is_due=lambda _: False)
    assert (nothing.publish, nothing.position) == ([], NOON)
    assert nothing.next_slot == NOON + timedelta(minutes=1)


def test_key_of_an_entry_tells_where_the_name_of_the_app_ends() -> None:
    assert entry_key("a/b:c", "d/e:f") == "beat:a%2Fb%3Ac:d/e:f"
