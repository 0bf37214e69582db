"""Times that people give, checked."""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, datetime
from typing import Any

from celery_singleton_lock.core.errors import ConfigurationError


def checked(what: str, moment: Any) -> datetime:
    """Refuse what has no time zone, and what is so far off that it has no name in another one."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        raise ConfigurationError(
            f"{what} {moment!r} is no datetime with a time zone: give one, say UTC"
        )
    if not MINYEAR < moment.year < MAXYEAR:
        raise ConfigurationError(f"{what} {moment} is out of reach: give a year from 2 to 9998")
    return moment
