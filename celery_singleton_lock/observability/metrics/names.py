"""Names of users in labels, bounded in number: each one is a time series for ever."""

from __future__ import annotations

from typing import Final

LIMIT: Final = 500
OTHER: Final = "other"


class Names:
    """The first so many are shown by themselves, the rest as "other"."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._shown: set[str] = set()

    def shown(self, name: str | None) -> str:
        if not name:
            return ""
        if name not in self._shown:
            if len(self._shown) >= self._limit:
                return OTHER
            self._shown.add(name)
        return name
