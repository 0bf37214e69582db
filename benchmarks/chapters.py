"""Running chapters of a benchmark one after the other: what fails is a row, and the rest goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from .measure import Answer, significant
from .table import row_of

Pace = Literal["quick", "usual", "full"]
"""How much of everything: too short to say anything; in minutes; as much as makes sense."""


@dataclass(frozen=True, slots=True)
class NotMeasured:
    name: str
    reason: str


Chapter = tuple[str, Iterator[Answer | NotMeasured]]


@dataclass(frozen=True, slots=True)
class Told:
    """A chapter that was measured: how long that took, and what came out."""

    title: str
    seconds: float
    results: tuple[Answer | NotMeasured, ...]

    def as_json(self) -> dict[str, Any]:
        rows = [plain(result) for result in self.results]
        return {"title": self.title, "seconds": round(self.seconds, 1), "rows": rows}


def tell(chapters: Iterable[Chapter]) -> Iterator[Told]:
    """Measure all of them, printing as it goes."""
    for title, results in chapters:
        print(f"\n{title}", flush=True)
        began, told = time.monotonic(), []
        for result in going_on(title, results):
            told.append(result)
            print(_line_of(result), flush=True)
        took = time.monotonic() - began
        print(f"  ({took:.0f} s)", flush=True)
        yield Told(title, took, tuple(told))


def going_on(title: str, results: Iterator[Answer | NotMeasured]) -> Iterator[Answer | NotMeasured]:
    """Whatever goes wrong in a chapter ends that chapter, and no more."""
    try:
        yield from results
    except Exception as error:  # noqa: BLE001 - it is told of in a row
        yield NotMeasured(title, reason_of(error))


def reason_of(error: Exception) -> str:
    """In a line: for a table."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0]}"[:200] if said else type(error).__name__


def _line_of(result: Answer | NotMeasured) -> str:
    if isinstance(result, NotMeasured):
        return f"  {result.name}: not measured, {result.reason}"
    return row_of(result)


def plain(result: Answer | NotMeasured) -> dict[str, Any]:
    """As JSON has it."""
    if isinstance(result, NotMeasured):
        return {"name": result.name, "not_measured": result.reason}
    return {
        "name": result.question.name,
        "at_most": result.question.promise and result.question.promise.at_most,
        "is_kept": result.is_kept if result.question.promise else None,
        "unit": result.unit,
        "ratio": result.ratio.as_json(),
        "measured": result.measured.as_json(),
        "against": result.against.as_json(),
        "tries": [significant(each) for each in result.tries],
    }
