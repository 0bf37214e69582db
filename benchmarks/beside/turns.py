"""Measuring many subjects in turns, some of which may not work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from benchmarks.chapters import NotMeasured, reason_of
from benchmarks.environment import version_of
from benchmarks.measure import Answer, Question, answer

Sample = Callable[[], float]
"""Seconds for one of whatever is compared."""


def in_turns(
    subjects: Mapping[str, Sample], rounds: int, *, against: str, warm_up: bool = False
) -> Iterator[Answer | NotMeasured]:
    """Each subject to one of them. Who breaks is out, with a row that says why; the others go on."""
    samples: dict[str, list[float]] = {name: [] for name in subjects}
    broken: dict[str, str] = {}
    order = list(subjects)
    for number in range(rounds + warm_up):
        for name in order:
            if name in broken:
                continue
            try:
                cost = subjects[name]()
            except Exception as error:
                if name == against:
                    raise
                broken[name] = reason_of(error)
            else:
                if number >= warm_up:
                    samples[name].append(cost)
        order.reverse()
    for name in subjects:
        if name in broken:
            yield NotMeasured(name, broken[name])
        elif name != against:
            yield answer(Question(name, name, against), samples)


def absent(packages: Iterable[str]) -> Iterator[NotMeasured]:
    for package in packages:
        if version_of(package) is None:
            yield NotMeasured(package, "it is not installed: see the extra `neighbours`")
