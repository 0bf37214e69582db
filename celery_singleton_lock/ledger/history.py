"""Listens to the facts of a process, and writes them down, off the path of those who tell them.

One thread, started with the first fact. What cannot be written waits, up to a number of facts: runs go
on while the database is away, and what did not fit is counted and told of.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from collections import deque
from typing import Final

from sqlalchemy.exc import DataError

from celery_singleton_lock.core.errors import LedgerOutdated, LedgerUnavailable
from celery_singleton_lock.core.facts import Fact

from .happenings import News
from .losses import Losses, OnLost
from .opening import Ledger
from .retention import Pruning, Retention
from .writing import write_news

logger = logging.getLogger(__name__)


class History:
    """A listener. May be called from any thread, and from the children of a process that made it."""

    FLUSH_EVERY = 0.5
    """Seconds. Also the longest time for which a fact is known to its process alone."""
    LONGEST_PAUSE = 10.0
    MOST_WAITING = 20_000
    """Facts; with more than these, new ones are lost."""
    BATCH = 1000

    def __init__(
        self, ledger: Ledger, retention: Retention | None = None, *, on_lost: OnLost | None = None
    ) -> None:
        """`retention` None: everything is kept. `on_lost` is called with how many facts are lost."""
        self.ledger: Final = ledger
        self._pruning = None if retention is None else Pruning(ledger, retention)
        self._on_lost = on_lost
        self._begin()
        _survive_forks(self)

    def _begin(self) -> None:
        self._facts: deque[Fact] = deque()
        self._news = News()
        self._losses = Losses(self._on_lost)
        self._writing = threading.Lock()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_checked = False
        self._in_trouble = False
        self._lost_before = 0

    def __call__(self, fact: Fact) -> None:
        if len(self._facts) >= self.MOST_WAITING:
            self._losses.add(1)
            return
        self._facts.append(fact)
        if self._thread is None:
            self._start()

    @property
    def lost(self) -> int:
        """Facts of this process that will never be written."""
        return self._losses.total

    @property
    def waiting(self) -> int:
        """How many facts and rows are to be written yet."""
        return len(self._facts) + len(self._news)

    def flush(self) -> bool:
        """Write all that waits, now and here. False: the database is away, or not fit to be written."""
        with self._writing:
            while self._facts or self._news:
                if not self._write_batch():
                    return False
        return True

    def close(self) -> None:
        """For the end of a process: what cannot be written now is lost, and that is said."""
        if self._thread is None or not self.waiting or self.flush():
            return
        logger.error(
            "history_lost ledger=%s facts=%d: the process ends, and the database is away",
            self.ledger.name, self.waiting,
        )  # fmt: skip
        self._losses.add(self.waiting)

    # The writing thread

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._keep_writing, name="singleton-history", daemon=True
                )
                self._thread.start()

    def _keep_writing(self) -> None:
        pause = self.FLUSH_EVERY
        while True:
            # Not woken by facts: a task that wakes a thread waits for it, and most come in crowds.
            time.sleep(pause)
            is_written = self.flush()
            if is_written and self._pruning is not None:
                self._pruning.prune_sometimes()
            pause = self.FLUSH_EVERY if is_written else min(2 * pause, self.LONGEST_PAUSE)

    def _write_batch(self) -> bool:
        while self._facts and len(self._news) < self.BATCH:
            self._take_in(self._facts.popleft())
        try:
            if not self._is_checked:
                self.ledger.schema.ensure_current()
                self._is_checked = True
            write_news(self.ledger, self._news)
        except (LedgerUnavailable, LedgerOutdated) as error:
            self._is_checked = False
            if not isinstance(error.__cause__, DataError):
                self._say(error)
                return False
            self._give_up_batch()
        except Exception:  # noqa: BLE001 - it is logged; and this thread's death would go unseen
            self._give_up_batch()
        else:
            self._say(None)
        # Only now: while the database is away there is one gap, which grows.
        self._news = News(gaps=self._losses.take())
        return True

    def _take_in(self, fact: Fact) -> None:
        try:
            self._news.add(fact)
        except Exception:
            # It makes no sense; and this thread's death would go unseen.
            self._losses.add(1)
            logger.exception("history_refused ledger=%s lost=%d", self.ledger.name, 1)

    def _give_up_batch(self) -> None:
        """It was refused for what is in it, and would be again: others must not wait for it."""
        self._losses.add(len(self._news))
        logger.exception("history_refused ledger=%s lost=%d", self.ledger.name, len(self._news))

    def _say(self, error: Exception | None) -> None:
        """Log when a trouble begins and when it ends, once each."""
        if error is not None and not self._in_trouble:
            self._lost_before = self.lost
            logger.error("history_trouble_began reason=%s: runs go on", error)
        elif error is None and self._in_trouble:
            lost = self.lost - self._lost_before
            logger.error("history_trouble_ended ledger=%s lost=%d", self.ledger.name, lost)
        self._in_trouble = error is not None


_histories: Final[weakref.WeakSet[History]] = weakref.WeakSet()
_is_registered = False


def _survive_forks(history: History) -> None:
    global _is_registered
    _histories.add(history)
    if not _is_registered:
        os.register_at_fork(after_in_child=_begin_anew)
        _is_registered = True


def _begin_anew() -> None:
    # The parent writes its own facts; its thread is not here, and its locks may have been held.
    for history in tuple(_histories):
        history._begin()
