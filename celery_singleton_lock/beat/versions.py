"""Rolling deploys: which definition of an entry counts while replicas differ.

That of the replica which started last. It says so in the book, for the entries that were published
otherwise before, and the others leave those entries to it for as long as it lives.
"""

from __future__ import annotations

import logging

from celery_singleton_lock.core.models import Page

from .book import Configured, config_page
from .entries import PlannedEntry
from .membership import Company
from .positions import Reading

logger = logging.getLogger(__name__)


class Versions:
    """What the book says of entries of ``beat_schedule``, and what it must be told."""

    def __init__(self, company: Company) -> None:
        self._company = company
        self._configured: dict[str, Configured] = {}
        self._members: tuple[str, ...] = ()

    def take_in(self, configured: Configured) -> None:
        self._configured[configured.name] = configured

    def to_review(self) -> list[str]:
        """Names of entries that may have to be `heed`-ed anew, because replicas came or went."""
        if self._members == self._company.members:
            return []
        self._members = self._company.members
        return list(self._configured)

    def heed(self, entry: PlannedEntry) -> None:
        """Let `entry` stand aside where a newer replica has another definition of it."""
        configured = self._configured.get(entry.name)
        if configured is None or not entry.mark:
            return
        entry.is_aside = configured.mark != entry.mark and self._company.has_started_since(
            configured.started
        )
        if configured.mark == entry.mark and configured.is_other_grid:
            entry.begin_after(configured.at)

    def to_announce(self, reading: Reading) -> list[Page]:
        """What the book must be told of entries that were just read for the first time."""
        pages = []
        for entry, recorded in reading.first:
            configured = self._configured.get(entry.name)
            current = configured.mark if configured else recorded
            if not entry.mark or not current or current == entry.mark:
                continue
            if configured is not None and configured.started > self._company.started:
                continue
            is_other_grid = grid_part(current) != grid_part(entry.mark)
            logger.info("beat_entry_changed entry=%r schedule_changed=%s", entry.name, is_other_grid)
            pages.append(
                config_page(entry.name, entry.mark, self._company.started, is_other_grid=is_other_grid)
            )
        return pages


def grid_part(mark: str) -> str:
    return mark.partition(".")[0]
