"""Tables for people, JSON for machines.

On a terminal a table has colour, and is cut to the terminal's width. In a pipe it has neither, so that
whoever reads it there gets all of it. ``NO_COLOR``, and ``celery --no-color``, are respected.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import click

GAP: Final = "  "
NARROWEST: Final = 6
ELLIPSIS: Final = "..."


class Shade(NamedTuple):
    """A cell in a colour of `click.style`."""

    value: object
    colour: str


def print_json(value: Any) -> None:
    """Keys in a fixed order, one document a command. What JSON has no word for becomes a text."""
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Every column as wide as it needs to be; on a terminal, as wide as there is room."""
    width = terminal_width() if sys.stdout.isatty() else None
    for line in table_lines(titles, rows, width=width, has_colour=has_colour()):
        click.echo(line)


def print_facts(facts: Sequence[tuple[str, object]]) -> None:
    """One thing, a line for each fact of it."""
    longest = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        click.echo(f"{name:{longest}}{GAP}{shaded(value, has_colour=has_colour())}")


def table_lines(
    titles: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    width: int | None = None,
    has_colour: bool = False,
) -> list[str]:
    """`width`: no line is wider, the widest columns give way first; None: as wide as it takes."""
    table = [[cell if isinstance(cell, Shade) else Shade(cell, "") for cell in row] for row in rows]
    shown = [[printable(cell) for cell in titles]]
    shown += [[printable(cell.value) for cell in row] for row in table]
    widths = _fit([max(columns_of(row[at]) for row in shown) for at in range(len(titles))], width)
    lines = []
    for number, texts in enumerate(shown):
        cells = [_to_width(text, at) for text, at in zip(texts, widths, strict=True)]
        cells[-1] = cells[-1].rstrip()
        if has_colour:
            colours = [cell.colour for cell in table[number - 1]] if number else ["bold"] * len(cells)
            cells = [_painted(text, colour) for text, colour in zip(cells, colours, strict=True)]
        lines.append(GAP.join(cells).rstrip())
    return lines


def _fit(widths: list[int], most: int | None) -> list[int]:
    if most is None:
        return widths
    widths = list(widths)
    room = most - len(GAP) * (len(widths) - 1)
    while sum(widths) > room and max(widths) > NARROWEST:
        widest = widths.index(max(widths))
        second = max((each for at, each in enumerate(widths) if at != widest), default=0)
        # At once down to the next wide one, and then in turns.
        widths[widest] -= min(sum(widths) - room, max(1, widths[widest] - second))
        widths[widest] = max(widths[widest], NARROWEST)
    return widths


def _to_width(text: str, width: int) -> str:
    shown = cut(text, width)
    return shown + " " * (width - columns_of(shown))


def _painted(text: str, colour: str) -> str:
    if not colour:
        return text
    if colour in ("bold", "dim"):
        return click.style(text, **{colour: True})
    return click.style(text, fg=colour)


def shaded(value: object, *, has_colour: bool) -> str:
    """A cell, or a plain value, as it is printed."""
    if isinstance(value, Shade):
        text = printable(value.value)
        return _painted(text, value.colour) if has_colour else text
    return printable(value)


def has_colour() -> bool:
    """Whether what is printed may have colour."""
    context = click.get_current_context(silent=True)
    told_not_to = os.environ.get("NO_COLOR") or getattr(context and context.obj, "no_color", False)
    return not told_not_to and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def terminal_width() -> int:
    return shutil.get_terminal_size().columns


def printable(value: object) -> str:
    """On one line, and without what would steer the terminal: messages may come from anybody."""
    text = "-" if value is None else str(value)
    return "".join(each if each.isprintable() else " " for each in text)


def columns_of(text: str) -> int:
    """How wide a printable text is on a terminal: some signs take two columns, and some none."""
    if text.isascii():
        return len(text)
    from wcwidth import wcswidth

    return max(0, wcswidth(text))


def cut(text: str, longest: int) -> str:
    """At most so many columns of a terminal."""
    if columns_of(text) <= longest:
        return text
    room = longest - len(ELLIPSIS)
    kept = text[:room]
    while columns_of(kept) > room:
        kept = kept[:-1]
    return kept + ELLIPSIS
