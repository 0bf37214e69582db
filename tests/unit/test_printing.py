"""Tables fit, colours are asked for, and names do no harm."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_singleton_lock.cli.printing import (
    Shade,
    columns_of,
    cut,
    has_colour,
    printable,
    table_lines,
)
from celery_singleton_lock.cli.times import ago, spoken

ROWS = [("short", "x" * 60, 1), ("🚀" * 20, "日本語" * 9, None)]
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_table_is_as_wide_as_it_takes_where_nobody_says_how_wide() -> None:
    lines = table_lines(("A", "B", "C"), ROWS)
    assert "x" * 60 in lines[1]
    assert lines[2].endswith("-")


@pytest.mark.parametrize("width", [80, 40, 30])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    lines = table_lines(("A", "B", "C"), ROWS, width=width)
    assert max(map(columns_of, lines)) <= width
    assert lines[1].startswith("short ")


def test_columns_stand_under_each_other_also_with_wide_signs() -> None:
    lines = table_lines(("A", "B"), [("🚀", "1"), ("abc", "2")])
    assert [
        columns_of(line[: line.index(sign)]) for line, sign in zip(lines[1:], "12", strict=True)
    ] == [
        5,
        5,
    ]


def test_colour_does_not_change_what_is_said() -> None:
    rows = [(Shade("bad", "red"), "x")]
    plain = table_lines(("A", "B"), rows)
    coloured = table_lines(("A", "B"), rows, has_colour=True)
    assert plain[1] == "bad  x"
    assert coloured[1] == "\x1b[31mbad\x1b[0m  x"


def test_colour_only_on_a_terminal_and_where_nobody_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert not has_colour()
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert has_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colour()


def test_text_is_printable_whatever_it_is() -> None:
    assert printable("a\x1b[31m\nb\u202e\ud800") == "a [31m b  "
    assert printable(None) == "-"


def test_cut_counts_columns() -> None:
    assert cut("abcdef", 6) == "abcdef"
    assert cut("abcdefg", 6) == "abc..."
    assert cut("🚀🚀🚀🚀", 6) == "🚀..."


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0s"), (0.42, "0.4s"), (9.94, "9.9s"), (9.96, "10s"), (59.6, "1m"), (63, "1m 3s"),
     (3600, "1h"), (7384, "2h 3m"), (90000, "1d 1h"), (86400 * 400, "400d")],
)  # fmt: skip
def test_span_is_spoken_in_its_two_largest_units(seconds: float, said: str) -> None:
    assert spoken(seconds) == said
    assert spoken(timedelta(seconds=seconds)) == said


def test_moment_is_told_from_now() -> None:
    assert ago(NOW - timedelta(minutes=3), NOW) == "3m ago"
    assert ago(NOW + timedelta(minutes=3), NOW) == "in 3m"
    assert ago(None, NOW) == "-"
