"""How things are compared here: in turns, many times over, by medians.

A time alone says more about the machine than about the code. A ratio of two times that were taken one
after the other, again and again, says something about the code on a noisy machine too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .promises import KNOWN_MISSES, Promise, Unit

MOST_REPEATS = 3
"""How often a missed promise is measured again: noise goes away, slowness stays."""

Timer = Callable[[], float]
Samples = Mapping[str, Sequence[float]]
"""What each subject cost in each round, in the order of the rounds."""


def significant(number: float) -> float:
    """Four digits are more than any of these figures is worth."""
    return float(f"{number:.4g}")


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of some values, and the bounds of their middle half."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        # Inclusive: the quartiles of few values must not lie outside of them.
        return cls(*statistics.quantiles(values, n=4, method="inclusive"))

    def as_json(self) -> dict[str, float]:
        return {name: significant(getattr(self, name)) for name in ("low", "median", "high")}


@dataclass(frozen=True, slots=True)
class Subject:
    """Something that takes time. A sample is `calls` calls; its cost is the time of one item.

    `tidy_up` follows each sample, and its time does not count.
    """

    call: Callable[[], object]
    calls: int = 1
    items_per_call: int = 1
    tidy_up: Callable[[], object] = lambda: None

    def cost(self, timer: Timer = time.perf_counter) -> float:
        began = timer()
        for _ in range(self.calls):
            self.call()
        took = timer() - began
        self.tidy_up()
        return took / (self.calls * self.items_per_call)


@dataclass(frozen=True, slots=True)
class Question:
    """What one subject costs in terms of another, and what is promised of that."""

    name: str
    measured: str
    against: str
    promise: Promise | None = None

    @property
    def at_most(self) -> float | None:
        """The ratio that is promised: that of a figure by itself is to its own bound."""
        if self.promise is None:
            return None
        return self.promise.at_most if self.promise.unit is None else 1.0


def promised(promise: Promise, measured: str, against: str) -> Question:
    return Question(promise.name, measured, against, promise)


@dataclass(frozen=True, slots=True)
class Answer:
    """`tries`: the median ratio of each try, in order; more than one if a promise was missed first."""

    question: Question
    measured: Spread
    against: Spread
    ratio: Spread
    tries: tuple[float, ...]
    unit: Unit = "seconds"

    @property
    def is_kept(self) -> bool:
        """Whether what was promised was measured; nothing promised is nothing broken."""
        return self.question.at_most is None or self.ratio.median <= self.question.at_most

    @property
    def is_known_miss(self) -> bool:
        """Missed, for a reason that is written down."""
        return not self.is_kept and self.question.promise in KNOWN_MISSES


@dataclass(frozen=True, slots=True)
class Contest:
    """Subjects that are measured in turns, and what is asked about them."""

    subjects: Mapping[str, Subject]
    questions: Sequence[Question]
    rounds: int

    def decide(self, *, repeats: int = MOST_REPEATS, timer: Timer = time.perf_counter) -> list[Answer]:
        """Answer every question, from samples that were all taken in the same rounds."""
        for subject in self.subjects.values():
            subject.call()
            subject.tidy_up()
        return until_kept(partial(self._try, timer), repeats)

    def _try(self, timer: Timer) -> list[Answer]:
        samples = take_turns(self.subjects, self.rounds, timer)
        return [answer(question, samples) for question in self.questions]


def until_kept(measure: Callable[[], list[Answer]], repeats: int) -> list[Answer]:
    """Measure again, at most `repeats` times, while a promise is missed; but not for those of which
    nobody expects anything else. Every try is told of."""
    tries = [measure()]
    while len(tries) <= repeats and not all(each.is_kept or each.is_known_miss for each in tries[-1]):
        tries.append(measure())
    return [
        replace(answers[-1], tries=tuple(each.ratio.median for each in answers))
        for answers in zip(*tries, strict=True)
    ]


def take_turns(subjects: Mapping[str, Subject], rounds: int, timer: Timer) -> Samples:
    """Sample every subject once a round, forwards and backwards: nobody always comes after the same."""
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    order = list(subjects)
    for _ in range(rounds):
        for name in order:
            samples[name].append(subjects[name].cost(timer))
        order.reverse()
    return samples


def answer(question: Question, samples: Samples, unit: Unit = "seconds") -> Answer:
    measured, against = samples[question.measured], samples[question.against]
    ratio = ratio_by_round(measured, against)
    return Answer(question, Spread.of(measured), Spread.of(against), ratio, (ratio.median,), unit)


def ratio_by_round(measured: Sequence[float], against: Sequence[float]) -> Spread:
    """Of samples of the same round: what disturbs the machine for longer than that is in both."""
    return Spread.of([one / other for one, other in zip(measured, against, strict=True)])


def against_bound(promise: Promise, values: Sequence[float]) -> Answer:
    """What was measured for itself, and not beside another: the ratio is to what is promised."""
    if promise.unit is None:
        raise ValueError(f"{promise.name!r} is promised of a ratio")
    samples = {"measured": values, "bound": [promise.at_most] * len(values)}
    return answer(promised(promise, "measured", "bound"), samples, promise.unit)
