"""Curves over the same values, measured in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.chapters import reason_of
from benchmarks.measure import Spread
from benchmarks.table import digits

Sample = Callable[[int], float]
"""What it costs at this value."""


@dataclass(slots=True)
class Curve:
    name: str
    points: list[tuple[int, Spread]] = field(default_factory=list)
    ended: str | None = None
    """Why it has no more points."""

    def as_json(self) -> dict[str, Any]:
        points = [{"x": x, **spread.as_json()} for x, spread in self.points]
        return {"name": self.name, "points": points, "ended": self.ended}


@dataclass(frozen=True, slots=True)
class Plot:
    """`subjects` are measured at all of `values`, so many rounds each: fewer where that takes long."""

    name: str
    title: str
    x: str
    y: str
    values: Sequence[int]
    subjects: Mapping[str, Sample]
    rounds: int = 1
    is_long: Callable[[int], bool] = lambda _: False
    ends_above: float | None = None
    """A curve ends where its next value must be expected to be higher, if it grows as `x` does."""

    def draw(self) -> dict[str, Any]:
        """Measure, print as it goes, and return it as JSON has it."""
        print(f"\n{self.title}", flush=True)
        began = time.monotonic()
        curves = self._curves()
        for curve in curves:
            told = "  ".join(f"{x:,}: {digits(spread.median)}" for x, spread in curve.points)
            print(f"  {curve.name:<28} {told}{f'  ({curve.ended})' if curve.ended else ''}", flush=True)
        return {
            "name": self.name,
            "title": self.title,
            "x": self.x,
            "y": self.y,
            "seconds": round(time.monotonic() - began, 1),
            "curves": [curve.as_json() for curve in curves],
        }

    def _curves(self) -> list[Curve]:
        curves = [Curve(name) for name in self.subjects]
        for x in self.values:
            samples: dict[str, list[float]] = {name: [] for name in self.subjects}
            for _ in range(1 if self.is_long(x) else self.rounds):
                for curve in curves:
                    if curve.ended is None and self._goes_on(curve, x):
                        self._sample(curve, x, samples[curve.name])
            for curve in curves:
                if samples[curve.name] and curve.ended is None:
                    curve.points.append((x, Spread.of(samples[curve.name])))
        return curves

    def _goes_on(self, curve: Curve, x: int) -> bool:
        if self.ends_above is not None and curve.points:
            last, spread = curve.points[-1]
            if spread.median * x / last > self.ends_above:
                curve.ended = f"at {x:,} it must be expected to take more than {self.ends_above:g} s"
        return curve.ended is None

    def _sample(self, curve: Curve, x: int, into: list[float]) -> None:
        try:
            into.append(self.subjects[curve.name](x))
        except Exception as error:  # noqa: BLE001 - it is told of
            curve.ended = reason_of(error)
