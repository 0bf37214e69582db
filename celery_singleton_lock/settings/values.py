"""What each kind of value may be, and how one is refused: with its name, its value, and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Final, NoReturn

from celery_singleton_lock.core.clock import MOST_DRIFT
from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import HIDDEN, redact, starts_as_url

LONGEST: Final = timedelta(days=3650)


def refuse(name: str, value: object, what_to_do: str) -> NoReturn:
    # Without a cause or a context: the errors of parsers quote what they could not parse.
    raise ConfigurationError(f"{name} = {shown(value)}: {what_to_do}") from None


def shown(value: object) -> str:
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case timedelta():
            return f"{value.total_seconds():g} s"
        case str():
            return repr(redact(value) if starts_as_url(value) or "@" not in value else HIDDEN)
        case list() | tuple():
            return f"[{', '.join(map(shown, value))}]"
    return f"<{type(value).__name__}>"


def read_duration(name: str, value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        refuse(name, value, "give seconds as a number, or a timedelta")
    try:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (ValueError, OverflowError):  # not a number, infinity
        duration = timedelta(0)
    if not timedelta(0) < duration <= LONGEST:
        refuse(name, value, "give seconds above 0, and at most ten years")
    return duration


def read_patience(name: str, value: object) -> timedelta | None:
    return None if value is False else read_duration(name, value)


def read_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        refuse(name, value, "give a whole number, 1 or more")
    return value


def read_drift(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MOST_DRIFT:
        refuse(name, value, f"give a part of a second in a second, from 0 to {MOST_DRIFT}")
    return float(value)


def read_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        refuse(name, value, "give True or False")
    return value


def read_name(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        refuse(name, value, "give a text that is not empty and contains no NUL")
    if len(value.encode(errors="replace")) > 255:  # RabbitMQ's limit for the name of a queue
        refuse(name, value, "give a text of at most 255 bytes")
    return value


def read_address(name: str, value: object) -> str:
    address = re.fullmatch(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", str(value))
    if not isinstance(value, str) or address is None or int(address[1]) > 65535:
        refuse(name, value, "write it as host:port, for example '127.0.0.1:9808'")
    return value


def one_of(*choices: str) -> Callable[[str, object], str]:
    def read_choice(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            refuse(name, value, f"choose one of {', '.join(map(repr, choices))}")
        return value

    return read_choice
