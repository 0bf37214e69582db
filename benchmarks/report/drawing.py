"""Plots as SVG. Each has a light background of its own, for light pages and dark ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[2] / "docs" / "images" / "benchmarks"
BACKGROUND: Final = "#fcfcfa"
OURS: Final = "#2f7d4f"
OTHERS: Final = ("#b7791f", "#2b6cb0", "#b3261e", "#6b46a8", "#4a5568")
MARKS: Final = "os^Dv*"
FAR_APART: Final = 30
"""Values that are farther apart than that need a scale by powers of ten."""

Plot = Mapping[str, Any]


def digest(plot: Plot) -> str:
    """Of what is shown; not of how long it took."""
    shown = {name: value for name, value in plot.items() if name != "seconds"}
    return hashlib.sha256(json.dumps(shown, sort_keys=True).encode()).hexdigest()


def draw(plot: Plot, folder: Path = FOLDER) -> Path:
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    mpl.rcParams.update({"font.size": 11, "svg.hashsalt": plot["name"], "axes.spines.right": False})
    mpl.rcParams.update({"axes.spines.top": False, "figure.facecolor": BACKGROUND})
    figure, axes = plt.subplots(figsize=(8, 4.4), facecolor=BACKGROUND)
    axes.set_facecolor(BACKGROUND)
    _add_curves(axes, plot)
    _set_scales(axes, plot)
    axes.set_title(plot["title"], loc="left", fontsize=12)
    axes.set_xlabel(plot["x"])
    axes.set_ylabel(plot["y"])
    axes.grid(visible=True, color="#d5d5d0", linewidth=0.6)
    if len(plot["curves"]) > 1:
        axes.legend(frameon=False, fontsize=10)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{plot['name']}.svg"
    figure.savefig(
        path,
        bbox_inches="tight",
        facecolor=BACKGROUND,
        metadata={"Date": None, "Description": digest(plot)},
    )
    plt.close(figure)
    return path


def _add_curves(axes: Any, plot: Plot) -> None:
    colours, dashed = iter(OTHERS * 2), False
    for mark, curve in zip(MARKS * 2, plot["curves"], strict=False):
        points = curve["points"]
        if not points:
            continue
        is_ours = curve["name"].startswith("ours")
        x, y = [point["x"] for point in points], [point["median"] for point in points]
        errors = [
            [max(0.0, point["median"] - point["low"]) for point in points],
            [max(0.0, point["high"] - point["median"]) for point in points],
        ]
        axes.errorbar(
            x,
            y,
            yerr=errors,
            label=curve["name"],
            color=OURS if is_ours else next(colours),
            linestyle="--" if is_ours and dashed else "-",
            linewidth=2.4 if is_ours else 1.5,
            marker=mark,
            markersize=5,
            capsize=2,
            elinewidth=0.8,
        )
        dashed = dashed or is_ours


def _set_scales(axes: Any, plot: Plot) -> None:
    points = [point for curve in plot["curves"] for point in curve["points"]]
    values = sorted({point["x"] for point in points})
    medians = [point["median"] for point in points]
    if values and values[0] > 0 and values[-1] / values[0] > FAR_APART:
        axes.set_xscale("log")
    if medians and min(medians) > 0 and max(medians) / min(medians) > FAR_APART:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    else:
        axes.set_ylim(bottom=0)
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
