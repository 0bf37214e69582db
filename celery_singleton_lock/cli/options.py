"""Options that several commands have, under one name and with one meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import click

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class Decorator(Protocol):
    def __call__(self, command: Decorated, /) -> Decorated: ...


as_json: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document instead of a table."
)
HOW_MANY: Final = click.IntRange(1, 1_000_000)
"""Larger numbers help nobody, and there are some that databases refuse."""
yes: Decorator = click.option("--yes", is_flag=True, help="Do not ask.")


reason: Decorator = click.option("--reason", metavar="TEXT", default="", help="Why, for the audit.")
required_reason: Decorator = click.option(
    "--reason", metavar="TEXT", required=True, help="Why, for the audit."
)


def limit(default: int) -> Decorator:
    return click.option(
        "--limit", type=HOW_MANY, default=default, show_default=True, metavar="N",
        help="Show at most so many.",
    )  # fmt: skip
