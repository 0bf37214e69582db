"""Whether speed is what it is known to be: the regression check."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .chapters import NotMeasured
from .measure import Answer
from .promises import KNOWN_MISSES, PROMISES, Promise


@dataclass(frozen=True, slots=True)
class Verdict:
    missed: tuple[Promise, ...]
    """Nobody knew: something has become worse."""
    missed_as_known: tuple[Promise, ...]
    kept_again: tuple[Promise, ...]
    """Known to be missed, and kept: to be taken from the list."""
    not_measured: tuple[Promise, ...]

    @classmethod
    def of(cls, results: Iterable[Answer | NotMeasured]) -> Verdict:
        answers = [each for each in results if isinstance(each, Answer) and each.question.promise]
        outcome = {each.question.promise: each.is_kept for each in answers}
        missed = [promise for promise in PROMISES if outcome.get(promise) is False]
        return cls(
            missed=tuple(each for each in missed if each not in KNOWN_MISSES),
            missed_as_known=tuple(each for each in missed if each in KNOWN_MISSES),
            kept_again=tuple(each for each in KNOWN_MISSES if outcome.get(each)),
            not_measured=tuple(each for each in PROMISES if each not in outcome),
        )

    @property
    def is_as_known(self) -> bool:
        """What was not measured is not known to be kept."""
        return not (self.missed or self.not_measured)

    def __str__(self) -> str:
        count = len(PROMISES) - len(self.missed) - len(self.missed_as_known) - len(self.not_measured)
        lines = [f"{count} of {len(PROMISES)} promises were kept."]
        for words, promises in (
            ("MISSED", self.missed),
            ("missed, as known", self.missed_as_known),
            ("kept, take it from KNOWN_MISSES", self.kept_again),
            ("NOT MEASURED", self.not_measured),
        ):
            lines += [f"  {words}: {promise.name}" for promise in promises]
        return "\n".join(lines)
