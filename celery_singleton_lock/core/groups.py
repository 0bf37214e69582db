"""Under which name the replicas of an app meet in the store."""

from __future__ import annotations

from urllib.parse import quote


def beat_group(app_name: str) -> str:
    """The group of the beats of one app; their book has the same name."""
    return f"beat:{quote(app_name, safe='')}"
