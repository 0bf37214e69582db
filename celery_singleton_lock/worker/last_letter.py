"""The dead letter of a run that failed for good, written by the parent process of its worker."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

from celery.exceptions import Reject

from celery_singleton_lock.core.errors import LetterNotSent, StoreUnavailable, WorkersDied
from celery_singleton_lock.core.models import FINISHED, Done, Granted, LeaseRequest, Release
from celery_singleton_lock.recovery.dead_letters import announce, dead_letters_of
from celery_singleton_lock.recovery.letters import (
    FAILED,
    OUT_OF_MEMORY,
    REJECTED,
    WORKER_DIED,
    Letter,
    Reason,
)
from celery_singleton_lock.recovery.original import queue_of

from .news import tell_of_letter
from .parts import Parts
from .run import FAILED as RUN_FAILED
from .run import Ask

logger = logging.getLogger(__name__)


def letter_for(
    request: Any, reason: Reason, error: BaseException | str, traceback: str | None
) -> Letter:
    """`request`: the worker's, which has the whole message."""
    started_at = datetime.fromtimestamp(request.time_start, UTC) if request.time_start else None
    return Letter.about(
        request.message,
        reason,
        exception=error,
        traceback=traceback,
        attempts=(request.request_dict.get("retries") or 0) + 1,
        started_at=started_at,
        queue=queue_of(request.app, request.message),
        worker=request.hostname,
    )


def reason_of(error: BaseException) -> Reason:
    if isinstance(error, WorkersDied):
        return WORKER_DIED
    if isinstance(error, MemoryError):
        return OUT_OF_MEMORY
    return REJECTED if isinstance(error, Reject) else FAILED


class LastLetter:
    """Sent under the lease of its run, so that two who have a message of it send one letter. A death
    between the sending and the record repeats it, under the same id."""

    def __init__(self, request: Any, letter: Letter, ask: Ask, parts: Parts) -> None:
        self._request = request
        self._letter = letter
        self._ask = ask
        self._parts = parts
        self._is_done = False

    def is_sent(self) -> bool:
        """Send it, unless that is done, and record the end of the run. False: not now."""
        if not self._is_done:
            try:
                self._is_done = self._send()
            except (StoreUnavailable, LetterNotSent) as error:
                logger.error(
                    "letter_waits run=%s letter=%s error=%s", self._ask.run, self._letter.id, error
                )
        return self._is_done

    def _send(self) -> bool:
        ask, store = self._ask, self._parts.store
        # Without the message in its note: a run that only owes a letter is not to be published again.
        [answer] = store.acquire([LeaseRequest(ask.run_key, ask.owner, ask.ttl, position=FINISHED)])
        if isinstance(answer, Done):
            return True  # another one has sent it
        if not isinstance(answer, Granted):
            return False
        dead_letters_of(self._request.app).send(self._letter)
        announce(self._letter, self._request.eventer)
        tell_of_letter(self._request.app, self._letter)
        keep_for = self._parts.settings.remember_for
        store.release([Release(answer.lease, FINISHED, RUN_FAILED, keep_for)])
        return True
