"""The figures on the pages are those that were measured last; and how these are put together."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.growth.curves import Plot
from benchmarks.neighbours.figures import Figure
from benchmarks.promises import KNOWN_MISSES, PROMISES
from benchmarks.report import drawing
from benchmarks.report.pages import PAGES, filled
from benchmarks.report.ratios import rows_of
from benchmarks.results import read

REFRESH = "run `python -m benchmarks.report`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_says_what_was_measured(page: Path) -> None:
    text = page.read_text()
    assert "<!-- measured: " in text
    assert filled(text) == text, f"{page.name} is not of the last measurement: {REFRESH}"


@pytest.mark.parametrize("plot", read("growth")["plots"], ids=lambda plot: plot["name"])
def test_plot_shows_what_was_measured(plot: drawing.Plot) -> None:
    picture = (drawing.FOLDER / f"{plot['name']}.svg").read_text()
    assert drawing.digest(plot) in picture, f"{plot['name']} is not of the last measurement: {REFRESH}"


def test_no_plot_is_left_from_an_earlier_measurement() -> None:
    assert {path.stem for path in drawing.FOLDER.glob("*.svg")} == {
        plot["name"] for plot in read("growth")["plots"]
    }


@pytest.mark.skipif(read("promises")["environment"]["run"] == "quick", reason="too short to say so")
def test_every_promise_that_was_missed_has_a_reason() -> None:
    reasons = {promise.name for promise in KNOWN_MISSES}
    missed = {row["name"] for row in rows_of("promises") if row.get("is_kept") is False}
    assert missed <= reasons, "say why in benchmarks/promises.py: KNOWN_MISSES"


def test_bounds_of_the_last_measurement_are_those_that_are_promised() -> None:
    promised = {promise.name: promise.at_most for promise in PROMISES}
    measured = {row["name"]: row["at_most"] for row in rows_of("promises") if row.get("at_most")}
    assert measured.items() <= promised.items()


def test_place_that_nobody_fills_is_refused() -> None:
    with pytest.raises(KeyError):
        filled("<!-- measured: the weather -->\n<!-- end -->")


def test_what_is_between_two_places_is_left_alone() -> None:
    page = (
        "<!-- measured: misses -->\nold\n<!-- end -->\nmine\n"
        "<!-- measured: misses -->\nold\n<!-- end -->\n"
    )
    assert "\nmine\n" in filled(page)
    assert "old" not in filled(page)


# Several plays of a scene


@pytest.mark.parametrize(
    ("figure", "values", "text"),
    [
        (Figure("gap", good=0, unit="s", at_most=45), [0.9, 1.1, 0.8], "0.9 s, worst 1.1 s"),
        (Figure("gap", good=0, unit="s", at_most=45), [45.0, 45.2, 45.0], "more than 45 s"),
        (Figure("gap", good=0, unit="s", at_most=45), [2.0, 3.0, 45.0], "3 s, worst more than 45 s"),
        (Figure("messages", good=1), [1.0, 0.97, 1.0], "1, worst 0.97"),
        (Figure("messages", good=1), [1.98, 1.98, 1.98], "1.98"),
    ],
)
def test_median_is_told_and_the_worst_where_that_is_another(
    figure: Figure, values: list[float], text: str
) -> None:
    assert figure.told(values) == text


# Curves


def test_curves_are_measured_in_turns_and_one_that_breaks_ends_alone() -> None:
    order: list[str] = []

    def good(x: int) -> float:
        order.append(f"good {x}")
        return 2.0 * x

    def breaks(x: int) -> float:
        order.append(f"breaks {x}")
        if x > 1:
            raise OSError("too many")
        return 1.0

    plot = Plot("p", "title", "x", "y", (1, 2, 3), {"good": good, "breaks": breaks}, rounds=2)
    first, second = plot.draw()["curves"]
    assert order == ["good 1", "breaks 1"] * 2 + ["good 2", "breaks 2", "good 2", "good 3", "good 3"]
    assert [(point["x"], point["median"]) for point in first["points"]] == [
        (1, 2.0),
        (2, 4.0),
        (3, 6.0),
    ]
    assert [point["x"] for point in second["points"]] == [1]
    assert second["ended"] == "OSError: too many"


def test_curve_ends_where_the_next_value_must_be_too_high() -> None:
    subjects = {"slow": lambda x: 2.0 * x, "flat": lambda _: 1.0}
    slow, flat = Plot("p", "title", "x", "y", (1, 10, 20), subjects, ends_above=30).draw()["curves"]
    assert [point["x"] for point in slow["points"]] == [1, 10]
    assert slow["ended"] == "at 20 it must be expected to take more than 30 s"
    assert [point["x"] for point in flat["points"]] == [1, 10, 20]
    assert flat["ended"] is None
