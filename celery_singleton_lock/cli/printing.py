"""Tables for people, JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import click


def print_json(value: Any) -> None:
    """Keys in a fixed order, one document a command. What JSON has no word for becomes a text."""
    click.echo(json.dumps(value, indent=2, default=str))


def print_table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Every column as wide as it needs to be."""
    shown = [[printable(cell) for cell in row] for row in (titles, *rows)]
    widths = [max(len(row[column]) for row in shown) for column in range(len(titles) - 1)]
    for row in shown:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        click.echo("  ".join([*cells, row[-1]]).rstrip())


def printable(value: object) -> str:
    """On one line, and without what would steer the terminal: messages may come from anybody."""
    text = "-" if value is None else str(value)
    return "".join(each if each.isprintable() else " " for each in text)


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 3] + "..."
