"""Who did what to what is kept for people: one log line for each act, whatever came of it."""

from __future__ import annotations

import getpass
import logging
import os
import socket

logger = logging.getLogger("celery_singleton_lock.audit")


def record(action: str, who: str, **facts: object) -> None:
    template = "".join(("%s who=%r", *(f" {name}=%r" for name in facts)))
    logger.warning(template, action, who, *facts.values())


def whoami() -> str:
    """The user of this process and its host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user has a number, and no name
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
