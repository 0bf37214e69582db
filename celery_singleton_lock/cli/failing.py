"""Errors become one clear line and an exit code, never a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

NOT_ALL: Final = 1
WRONG_USAGE: Final = 2
BROKER_AWAY: Final = 3

Command = TypeVar("Command", bound=Callable[..., Any])


def telling_errors(command: Command) -> Command:
    """For a command that talks to the broker."""

    @functools.wraps(command)
    def told(*args: Any, **kwargs: Any) -> Any:
        from celery_singleton_lock.core.errors import BrokerUnavailable, ConfigurationError

        try:
            return command(*args, **kwargs)
        except ConfigurationError as error:
            _exit(str(error), WRONG_USAGE)
        except BrokerUnavailable as error:
            _exit(f"the broker did not answer: {error}. Nothing is lost: try again", BROKER_AWAY)

    return told  # type: ignore[return-value]


def _exit(text: str, code: int) -> None:
    click.echo(f"Error: {text}", err=True)
    raise SystemExit(code)
