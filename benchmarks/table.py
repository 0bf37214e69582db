"""A line of text for each answer."""

from __future__ import annotations

from .measure import Answer, Spread
from .promises import Unit

_LINE = "  {:<53} {:>20} {:>20} {:>22}  {}"
HEADING = _LINE.format("", "measured", "against", "ratio", "promise").rstrip()


def row_of(answer: Answer) -> str:
    return _LINE.format(
        answer.question.name,
        quantity(answer.measured, answer.unit),
        quantity(answer.against, answer.unit),
        with_quartiles(answer.ratio, 1),
        outcome(answer),
    ).rstrip()


def quantity(spread: Spread, unit: Unit) -> str:
    if unit == "round trips":
        return f"{spread.median:,.{0 if spread.median >= 10 else 1}f}"
    if unit == "bytes":
        return f"{with_quartiles(spread, 1 / 2**20)} MB"
    if unit != "seconds":
        return f"{digits(spread.median)} {unit}"
    if spread.median < 0.001:
        return f"{with_quartiles(spread, 1_000_000)} µs"
    return f"{with_quartiles(spread, 1_000)} ms"


def with_quartiles(spread: Spread, factor: float) -> str:
    low, median, high = (digits(each * factor) for each in (spread.low, spread.median, spread.high))
    return f"{median} [{low} {high}]"


def digits(number: float) -> str:
    """As many as mean something: about three."""
    decimals = next((places for least, places in ((100, 0), (10, 1), (0.1, 2)) if number >= least), 3)
    return f"{number:,.{decimals}f}"


def outcome(answer: Answer) -> str:
    """What was promised, whether that was measured, and at which try."""
    promised, tries = answer.question.at_most, len(answer.tries)
    if promised is None:
        return ""
    word = "kept" if answer.is_kept else "missed, as known" if answer.is_known_miss else "MISSED"
    if tries == 1:
        return f"≤ {promised:g} {word}"
    medians = ", ".join(digits(each) for each in answer.tries)
    return f"≤ {promised:g} {word}, repeated {tries - 1}x: {medians}"
