"""The statistics of the benchmarks: what is promised about ratios rests on them."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from benchmarks.beside.turns import in_turns
from benchmarks.chapters import NotMeasured, tell
from benchmarks.measure import (
    Answer,
    Contest,
    Question,
    Spread,
    Subject,
    against_bound,
    answer,
    promised,
    ratio_by_round,
    take_turns,
    until_kept,
)
from benchmarks.promises import KNOWN_MISSES, LAG, LEASE, PROMISES, TASK_ROUND_TRIPS, Promise
from benchmarks.round_trips import RoundTrips, counted_round_trips
from benchmarks.table import digits, row_of
from benchmarks.verdict import Verdict


class Stopwatch:
    """A clock that subjects move by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def takes(self, *seconds: float) -> Callable[[], None]:
        """Something that takes so long: the first time, the second time, and so on for ever."""
        durations = self._cycle(seconds)

        def take() -> None:
            self.now += next(durations)

        return take

    @staticmethod
    def _cycle(seconds: tuple[float, ...]) -> Iterator[float]:
        while True:
            yield from seconds


@pytest.fixture
def stopwatch() -> Stopwatch:
    return Stopwatch()


def answered(ratio: float, at_most: float | None = 1.25) -> Answer:
    promise = None if at_most is None else Promise("q", at_most, "leases", "because")
    return answer(Question("q", "a", "b", promise), {"a": [ratio], "b": [1.0]})


# Spreads and ratios


def test_spread_is_the_median_and_the_quartiles() -> None:
    assert Spread.of([5, 1, 3, 2, 4]) == Spread(2, 3, 4)


def test_spread_of_one_value_is_that_value() -> None:
    assert Spread.of([7.0]) == Spread(7.0, 7.0, 7.0)


def test_spread_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="data"):
        Spread.of([])


def test_one_wild_value_moves_no_median() -> None:
    assert Spread.of([1.0] * 10 + [1e9]).median == 1.0


def test_ratio_is_unmoved_by_noise_that_both_sides_of_a_round_have() -> None:
    noise = [random.Random(4).uniform(1, 50) for _ in range(100)]
    ratio = ratio_by_round([1.5 * each for each in noise], noise)
    assert (ratio.low, ratio.median, ratio.high) == pytest.approx((1.5, 1.5, 1.5))


def test_ratio_of_unequal_numbers_of_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        ratio_by_round([1.0, 2.0], [1.0])


# Sampling


def test_cost_is_of_one_item_of_one_call(stopwatch: Stopwatch) -> None:
    subject = Subject(stopwatch.takes(10.0), calls=4, items_per_call=5)
    assert subject.cost(stopwatch) == pytest.approx(2.0)


def test_subjects_are_sampled_in_turns_and_in_changing_order(stopwatch: Stopwatch) -> None:
    order: list[str] = []
    subjects = {name: Subject(partial(order.append, name)) for name in "abc"}
    samples = take_turns(subjects, 3, stopwatch)
    assert "".join(order) == "abccbaabc"
    assert {name: len(costs) for name, costs in samples.items()} == {"a": 3, "b": 3, "c": 3}


def test_first_call_of_a_subject_is_not_measured(stopwatch: Stopwatch) -> None:
    slow_at_first = stopwatch.takes(100.0, *[3.0] * 50)
    contest = Contest(
        {"a": Subject(slow_at_first), "b": Subject(stopwatch.takes(2.0))},
        [Question("q", "a", "b")],
        rounds=5,
    )
    [result] = contest.decide(timer=stopwatch)
    assert result.ratio == Spread(1.5, 1.5, 1.5)
    assert (result.measured.median, result.against.median) == (3.0, 2.0)


# Promises


@pytest.mark.parametrize(
    ("ratio", "at_most", "is_kept"), [(1.25, 1.25, True), (1.26, 1.25, False), (99.0, None, True)]
)
def test_promise_is_kept_up_to_its_limit(ratio: float, at_most: float | None, is_kept: bool) -> None:
    assert answered(ratio, at_most).is_kept is is_kept


def test_kept_promise_is_measured_once() -> None:
    tries = iter([1.1, 9.9])
    [result] = until_kept(lambda: [answered(next(tries))], repeats=3)
    assert result.tries == (1.1,)


def test_missed_promise_is_measured_again_until_it_is_kept_and_every_try_is_told() -> None:
    tries = iter([1.4, 1.3, 1.2, 9.9])
    [result] = until_kept(lambda: [answered(next(tries))], repeats=3)
    assert result.is_kept
    assert result.tries == (1.4, 1.3, 1.2)
    assert "≤ 1.25 kept, repeated 2x: 1.40, 1.30, 1.20" in row_of(result)


def test_promise_is_missed_after_the_last_repeat() -> None:
    tries = iter([1.5, 1.6, 1.7, 1.8, 1.0])
    [result] = until_kept(lambda: [answered(next(tries))], repeats=3)
    assert not result.is_kept
    assert result.tries == (1.5, 1.6, 1.7, 1.8)
    assert "MISSED" in row_of(result)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Promise:
    """There may be no other one, at present."""
    misses: Any = KNOWN_MISSES
    monkeypatch.setitem(misses, LEASE, "a reason that is long enough")
    return LEASE


def test_known_miss_is_not_measured_again(known: Promise) -> None:
    question, tries = promised(known, "a", "b"), iter([known.at_most + 1, known.at_most])
    [result] = until_kept(lambda: [answer(question, {"a": [next(tries)], "b": [1.0]})], repeats=3)
    assert result.tries == (known.at_most + 1,)
    assert "missed, as known" in row_of(result)


def test_bound_of_a_figure_is_of_the_figure() -> None:
    assert against_bound(LAG, [LAG.at_most]).is_kept
    assert not against_bound(LAG, [LAG.at_most * 1.01]).is_kept
    with pytest.raises(ValueError, match="ratio"):
        against_bound(LEASE, [1.0])


# The regression check


def measured(promise: Promise, factor: float) -> Answer:
    """`factor` times what is promised."""
    if promise.unit:
        return against_bound(promise, [promise.at_most * factor])
    return answer(promised(promise, "a", "b"), {"a": [promise.at_most * factor], "b": [1.0]})


@pytest.mark.usefixtures("known")
def test_all_as_it_is_known_to_be_is_no_regression() -> None:
    verdict = Verdict.of(measured(each, 1.5 if each in KNOWN_MISSES else 0.9) for each in PROMISES)
    assert verdict.is_as_known
    assert set(verdict.missed_as_known) == set(KNOWN_MISSES)


@pytest.mark.parametrize(
    "promise", [each for each in PROMISES if each not in KNOWN_MISSES], ids=lambda each: each.name
)
def test_every_new_miss_is_a_regression(promise: Promise) -> None:
    verdict = Verdict.of(measured(each, 1.01 if each is promise else 0.9) for each in PROMISES)
    assert not verdict.is_as_known
    assert verdict.missed == (promise,)
    assert f"MISSED: {promise.name}" in str(verdict)


def test_what_was_not_measured_is_not_kept() -> None:
    others = [measured(each, 0.9) for each in PROMISES if each is not TASK_ROUND_TRIPS]
    verdict = Verdict.of([*others, NotMeasured(TASK_ROUND_TRIPS.name, "no server")])
    assert not verdict.is_as_known
    assert verdict.not_measured == (TASK_ROUND_TRIPS,)


@pytest.mark.usefixtures("known")
def test_known_miss_that_is_kept_again_is_named() -> None:
    verdict = Verdict.of(measured(each, 0.9) for each in PROMISES)
    assert verdict.is_as_known
    assert set(verdict.kept_again) == set(KNOWN_MISSES)


def test_no_two_promises_have_one_name_and_each_miss_has_a_reason() -> None:
    assert len({each.name for each in PROMISES}) == len(PROMISES)
    assert set(KNOWN_MISSES) <= set(PROMISES)
    assert all(len(reason) > 20 for reason in KNOWN_MISSES.values())


# What fails


def failing() -> Iterator[Answer]:
    yield answered(1.0)
    raise OSError("no server\nand a long story")


def test_chapter_that_fails_keeps_what_it_had_and_the_next_one_goes_on() -> None:
    first, second = tell([("one", failing()), ("two", iter([answered(1.1)]))])
    assert first.results == (answered(1.0), NotMeasured("one", "OSError: no server"))
    assert second.results == (answered(1.1),)


def test_subject_that_breaks_is_a_row_with_the_reason_and_the_others_go_on() -> None:
    broken, good = in_turns(
        {"floor": lambda: 2.0, "broken": lambda: 1 / 0, "good": lambda: 3.0}, 3, against="floor"
    )
    assert broken == NotMeasured("broken", "ZeroDivisionError: division by zero")
    assert isinstance(good, Answer)
    assert good.ratio.median == 1.5


def test_nothing_is_measured_against_what_breaks() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_turns({"floor": lambda: 1 / 0, "good": lambda: 3.0}, 3, against="floor"))


# Round trips and digits


def test_writes_before_a_read_are_one_round_trip() -> None:
    trips = RoundTrips()
    for step in (trips.read, trips.write, trips.write, trips.read, trips.read, trips.write, trips.read):
        step()
    assert trips.count == 2


def test_round_trips_are_counted_at_the_socket_and_only_inside_the_block() -> None:
    here, there = socket.socketpair()
    with here, there:
        with counted_round_trips() as trips:
            for _ in range(3):
                here.sendall(b"question")
                there.recv(100)
        here.sendall(b"question")
        there.recv(100)
    assert trips.count == 3


@pytest.mark.parametrize(
    ("number", "text"),
    [(12345.6, "12,346"), (253.4, "253"), (35.12, "35.1"), (1.456, "1.46"), (0.0163, "0.016")],
)
def test_about_three_digits_are_shown(number: float, text: str) -> None:
    assert digits(number) == text
