"""The books of groups on several nodes: all are given the same revisions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Page, Reading
from celery_singleton_lock.leases.books import REMOVED_KEPT_FOR
from celery_singleton_lock.leases.redis.names import Names
from celery_singleton_lock.leases.rules import microseconds

from . import scripts
from .conversation import Conversation
from .records import reading_of

_REMOVED_KEPT: Final = microseconds(REMOVED_KEPT_FOR)
_TRIES: Final = 5


class Books:
    """`store` is its name, for errors."""

    def __init__(self, conversation: Conversation, names: Names, store: str) -> None:
        self._conversation = conversation
        self._names = names
        self._store = store

    def write(self, book: str, pages: Sequence[Page]) -> list[Page]:
        """All nodes are given the same revisions, which are beyond all that a majority has."""
        keys = [self._names.group(book)] * len(pages)
        majority = self._conversation.quorum.size.majority
        for _ in range(_TRIES):
            first = self._next_revision(book)
            rows = [
                (
                    page.name,
                    page.version or revision,
                    int(page.text is None),
                    page.text or "",
                    revision,
                )
                for revision, page in enumerate(pages, first)
            ]
            told = self._conversation.answers(scripts.WRITE, keys, rows, (_REMOVED_KEPT,), width=3)
            accepted = [sum(is_done for is_done, _, _ in each) for each in zip(*told, strict=True)]
            if min(accepted) >= majority:
                return [
                    _settled(page.name, each)
                    for page, each in zip(pages, zip(*told, strict=True), strict=True)
                ]
            # Another writer was quicker.
        raise StoreUnavailable(self._store, f"others keep writing into the book {book!r}")

    def _next_revision(self, book: str) -> int:
        look = ("", "", 0)
        group = [self._names.group(book)]
        told = self._conversation.answers(scripts.MEET, group, [look], width=4)
        highest: int = max(max(now, revision) for [(now, _, _, revision)] in told)
        # Two writers that look at the same moment should not choose the same.
        return highest + random.randrange(1, 1000)  # nosec B311 # noqa: S311 - no secret

    def read(self, book: str, after: int) -> Reading:
        group = [self._names.group(book)]
        told = self._conversation.answers(scripts.READ, group, [(after,)], width=2)
        return reading_of(self._conversation.quorum.size, [each for [each] in told])


def _settled(name: str, told: Sequence[tuple[int, int, str | bool]]) -> Page:
    _, version, text = max(told, key=lambda each: each[1])
    return Page(name, version, text if isinstance(text, str) else None)
