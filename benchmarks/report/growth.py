"""How cost grows: a plot of each, and its figures below."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.results import read
from benchmarks.table import digits

from .ratios import bold_if_ours, table

Plot = Mapping[str, Any]


def plots() -> str:
    return "\n\n".join(map(section, read("growth")["plots"]))


def section(plot: Plot) -> str:
    values = sorted({point["x"] for curve in plot["curves"] for point in curve["points"]})
    rows = []
    for curve in plot["curves"]:
        medians = {point["x"]: digits(point["median"]) for point in curve["points"]}
        rows.append([bold_if_ours(curve["name"]), *(medians.get(value, "") for value in values)])
    lines = [
        f"![{plot['title']}: {plot['y']} by {plot['x']}](images/benchmarks/{plot['name']}.svg)",
        table([f"{plot['y']}, at {plot['x']}:", *(f"{value:,}" for value in values)], rows),
    ]
    ended = [f"{curve['name']} ({curve['ended']})" for curve in plot["curves"] if curve["ended"]]
    if ended:
        lines.append(f"Not measured any further: {'; '.join(ended)}.")
    return "\n\n".join(lines)
