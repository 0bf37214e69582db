"""Ids as people give them: the beginning is enough, also as a table cut it off."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import click

WHOLE: Final = 36
"""As long as a uuid: nothing is looked for that such an id may be the beginning of."""


def beginning(given: str) -> str:
    return given.rstrip(".…")


def whole(given: str, known: Iterable[str]) -> str:
    """The one of `known` that begins so; as it was given, where there is none."""
    start = beginning(given)
    found = {each for each in known if start and each.startswith(start)}
    if given in found or not found:
        return given
    if len(found) > 1:
        raise click.UsageError(f"more than one id begins with {start}: give more of it")
    return found.pop()
