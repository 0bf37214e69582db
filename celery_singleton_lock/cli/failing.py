"""Errors become one clear line and an exit code, never a traceback."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeVar

import click

NOT_ALL: Final = 1
WRONG_USAGE: Final = 2
SERVER_AWAY: Final = 3

Command = TypeVar("Command", bound=Callable[..., Any])


def telling_errors(command: Command) -> Command:
    """For a command that only asks the lease store, the broker or the database."""
    return _telling(command, "Try again")


def telling_errors_of_changes(command: Command) -> Command:
    return _telling(command, "A change may have been made: look, and ask again")


def _telling(command: Command, what_to_do: str) -> Command:
    @functools.wraps(command)
    def told(*args: Any, **kwargs: Any) -> Any:
        from celery_singleton_lock.core.errors import (
            BrokerUnavailable,
            ConfigurationError,
            LedgerUnavailable,
            StoreUnavailable,
        )

        try:
            return command(*args, **kwargs)
        except ConfigurationError as error:
            fail(str(error), WRONG_USAGE)
        except BrokerUnavailable as error:
            fail(f"the broker did not answer: {error}. Nothing is lost: try again", SERVER_AWAY)
        except (StoreUnavailable, LedgerUnavailable) as error:
            fail(f"{error}. {what_to_do}", SERVER_AWAY)

    return told  # type: ignore[return-value]


def fail(text: str, code: int = NOT_ALL) -> NoReturn:
    """End with one line on standard error."""
    from .printing import printable

    click.echo(f"Error: {printable(text)}", err=True)
    raise SystemExit(code)


def ask(question: str, *, as_json: bool = False) -> None:
    """Go on if somebody says yes. Where nobody is there to ask, refuse."""
    ensure_somebody_to_ask(f"{question} Give --yes", as_json=as_json)
    click.confirm(question, abort=True, err=True)


def ensure_somebody_to_ask(instead: str, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise click.UsageError(f"there is nobody to ask: {instead}")
