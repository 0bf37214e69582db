"""When a run is tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_singleton_lock.recovery.retry import GIVE_UP, SHORTEST_S, RetryIn, RetryPolicy, decide


def seconds(policy: RetryPolicy, retries: int, chance: float) -> float:
    decision = decide(policy, retries, chance)
    assert isinstance(decision, RetryIn)
    return decision.seconds


def test_delay_doubles_up_to_the_longest() -> None:
    policy = RetryPolicy(max_retries=None, first_s=2, longest_s=10, jitter=False)
    assert [seconds(policy, retries, 0.5) for retries in range(5)] == [2, 4, 8, 10, 10]


@given(
    retries=st.integers(0, 10**6),
    chance=st.floats(0, 1),
    first_s=st.floats(0.01, 100),
    longest_s=st.floats(1, 10_000),
)
def test_jitter_never_gives_nothing_and_never_more_than_the_longest(
    retries: int, chance: float, first_s: float, longest_s: float
) -> None:
    policy = RetryPolicy(max_retries=None, first_s=first_s, longest_s=longest_s)
    assert min(SHORTEST_S, first_s, longest_s) <= seconds(policy, retries, chance) <= longest_s


def test_jitter_takes_the_whole_room() -> None:
    policy = RetryPolicy(first_s=8)
    assert seconds(policy, 0, 0.0) == SHORTEST_S
    assert seconds(policy, 0, 1.0) == 8


@pytest.mark.parametrize("retries", [3, 4])
def test_used_up_retries_are_the_end(retries: int) -> None:
    assert decide(RetryPolicy(max_retries=3), retries, 0.5) == GIVE_UP


def test_without_a_limit_there_is_always_another_try() -> None:
    assert seconds(RetryPolicy(max_retries=None), 10**9, 1.0) == 600


def test_no_retries_at_all() -> None:
    assert decide(RetryPolicy(max_retries=0), 0, 0.5) == GIVE_UP
