"""One page of many rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Part(Generic[Row]):
    rows: Sequence[Row]
    page: int
    size: int
    count: int

    def as_json(self) -> dict[str, Any]:
        return {"page": self.page, "size": self.size, "count": self.count}


def part_of(rows: Sequence[Row], page: int, size: int) -> Part[Row]:
    """Page `page`, counted from 1; the last one, if there are fewer."""
    page = min(page, last_page(len(rows), size))
    return Part(rows[(page - 1) * size : page * size], page, size, len(rows))


def last_page(count: int, size: int) -> int:
    return max(1, -(-count // size))
