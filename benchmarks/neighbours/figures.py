"""What is counted in a scene, and how several plays of it are put together."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """`good` is what it should be: the worst of several values is the one that is farthest from it."""

    name: str
    good: float
    unit: str = ""
    at_most: float | None = None
    """Nobody waited for longer than that."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def told(self, values: Sequence[float]) -> str:
        """The median, and the worst where that is another one."""
        median = self._shown(statistics.median(values))
        worst = self._shown(max(values, key=lambda value: abs(value - self.good)))
        return median if worst == median else f"{median}, worst {worst}"

    def _shown(self, value: float) -> str:
        unit = f" {self.unit}" if self.unit else ""
        if self.at_most is not None and value >= self.at_most:
            return f"more than {self.at_most:g}{unit}"
        return f"{value:.{0 if value == int(value) else 1 if self.unit == 's' else 2}f}{unit}"
