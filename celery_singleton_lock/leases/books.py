"""Books: named texts that many replicas read, each with a version; the rules of them, without I/O.

A page that was removed stays as a removal for some time, so that whoever reads only what changed learns
of it, and whoever puts back what a store forgot does not bring it back.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from celery_singleton_lock.core.models import FINISHED, Page, Reading

from .rules import Row, microseconds

REMOVED_KEPT_FOR: Final = timedelta(days=7)


def book_key(book: str) -> str:
    """Where a book is kept: a key that no lease can have. Its row has no fence, either."""
    return f"\0book:{book}"


@dataclass(frozen=True, slots=True)
class Writing:
    pages: Sequence[Page]


@dataclass(frozen=True, slots=True)
class Wanted:
    after: int


def write(row: Row, writing: Writing, now: int) -> tuple[Row, list[Page]]:
    """The row of a book: its revision as position; in its note, [version, revision, text] by name."""
    known = _pages(row)
    revision = max((row.position or 0) + 1, now)
    settled = []
    for page in writing.pages:
        before = known.get(page.name)
        if before is not None and 0 < page.version <= before[0]:
            settled.append(Page(page.name, before[0], before[2]))
            continue
        after = page if page.version else replace(page, version=revision)
        known[page.name] = [after.version, revision, after.text]
        settled.append(after)
    line = now - microseconds(REMOVED_KEPT_FOR)
    kept = {name: it for name, it in known.items() if it[2] is not None or it[1] > line}
    written = replace(row, position=revision, note=json.dumps(kept), since=now, kept_until=FINISHED)
    return written, settled


def read(row: Row, wanted: Wanted, _: int) -> tuple[Row, Reading]:
    changed = sorted(
        (revision, name, version, text)
        for name, (version, revision, text) in _pages(row).items()
        if revision > wanted.after
    )
    pages = tuple(Page(name, version, text) for _, name, version, text in changed)
    return row, Reading(row.position or 0, pages)


def _pages(row: Row) -> dict[str, Any]:
    pages: dict[str, Any] = json.loads(row.note) if row.note else {}
    return pages
