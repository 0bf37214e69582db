"""Where alerts go. Addresses may be secrets by themselves: none is shown when it is refused."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from celery_singleton_lock.core.redaction import HIDDEN

from .values import refuse

ALERTS: Final = ("slot_missed", "dead_lettered", "lease_lost", "overdue", "trouble", "skipped")
"""What can be asked for. Skips are the rule where tasks overlap: not by default."""
BY_DEFAULT: Final = ALERTS[:-1]
FROM_ENVIRONMENT: Final = "env:"


def read_secret(name: str, value: object) -> str:
    """The text, or, after ``env:``, the value of that variable: Celery shows its config to people."""
    if not isinstance(value, str) or not value.strip():
        refuse(name, HIDDEN, "give a text that is not empty, or 'env:NAME'")
    if not value.startswith(FROM_ENVIRONMENT):
        return value
    variable = value.removeprefix(FROM_ENVIRONMENT)
    found = os.environ.get(variable, "").strip()
    if not found:
        refuse(name, value, f"set {variable} in the environment")
    return found


def read_webhook(name: str, value: object) -> str:
    return _read_url(name, value, ("https", "http"), "https://host/path")


def read_smtp_url(name: str, value: object) -> str:
    return _read_url(name, value, ("smtp", "smtps"), "smtp://user:password@host:587")


def _read_url(name: str, value: object, schemes: Sequence[str], example: str) -> str:
    url = read_secret(name, value)
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or re.search(r"\s", url):
        refuse(name, HIDDEN, f"write it like {example}, with the password percent-encoded")
    return url


def read_addresses(name: str, value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not given:
        refuse(name, value, "give an e-mail address, or a list of them")
    for each in given:
        read_mail_address(name, each)
    return tuple(given)


def read_mail_address(name: str, value: object) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"[^\s@,;<>]+@[^\s@,;<>]+", value):
        refuse(name, HIDDEN, "write an e-mail address like ops@example.org, without a name")
    return value


def read_alerts(name: str, value: object) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(each in ALERTS for each in given):
        refuse(name, value, f"give a list of any of {', '.join(ALERTS)}")
    return tuple(given)
