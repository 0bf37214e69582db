"""How an execution tells the worker's parent process that it did not run its body to the end.

They are Ignores to Celery: no state, no callback, no retry. What becomes of the message is for
`SingletonRequest` to say; a request of another class would acknowledge it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from celery.exceptions import Ignore

from .run import Keep, KeepReason


class KeptAside(Ignore):  # type: ignore[misc]
    """The message stays with the worker, and is offered again."""

    def __init__(self, reason: str, by: str = "", remaining_s: float = 0.0, job: str = "") -> None:
        super().__init__(reason, by, remaining_s, job)
        self.keep = Keep(cast(KeepReason, reason), by, timedelta(seconds=remaining_s), job)

    @classmethod
    def because(cls, keep: Keep) -> KeptAside:
        return cls(keep.reason, keep.by, keep.remaining.total_seconds(), keep.job)


class CopyIgnored(Ignore):  # type: ignore[misc]
    """The run is further than this message of it."""

    def __init__(self, outcome: str | None, is_letter_due: bool = False) -> None:
        super().__init__(outcome, is_letter_due)
        self.outcome = outcome
        self.is_letter_due = is_letter_due


class RunSkipped(Ignore):  # type: ignore[misc]
    """Another run does the job. The result says so already."""

    def __init__(self, reason: str, by: str) -> None:
        super().__init__(reason, by)
        self.reason = reason
        self.by = by
