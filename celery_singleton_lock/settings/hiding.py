"""Keeps our secrets out of what Celery tells of its settings."""

from __future__ import annotations

import re
from typing import Final

_OURS: Final = r"SINGLETON_(?:\w*URL|ALERT_WEBHOOK)"


def hide_secrets() -> None:
    """``celery report``, ``celery inspect conf`` and Flower show all settings, but for those whose name
    matches a pattern of Celery's, and of a few the password: a URL of ours would be shown as it is."""
    from celery.app import utils

    pattern = utils.HIDDEN_SETTINGS
    if _OURS not in pattern.pattern:
        utils.HIDDEN_SETTINGS = re.compile(f"{pattern.pattern}|{_OURS}", pattern.flags)
