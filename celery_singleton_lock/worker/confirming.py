"""Extends the leases of calls that were published, many at a time and off the caller's way."""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from typing import Final

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Lease
from celery_singleton_lock.leases import LeaseStore

from .forks import begin_in_children

logger = logging.getLogger(__name__)


class Confirming:
    """One for each process and store. What is handed over is renewed once, within `WITHIN` seconds: far
    sooner than a lease that waits for it can run out.

    A process that is killed before that leaves a lease that ends after its first, short ttl: as one
    that is killed right after it published.
    """

    WITHIN = 0.025
    """Until then an equal call of another process takes this one for unpublished, and copies it."""
    LINGER = 1.0
    """How long the thread stays awake without work: to wake it costs as much as a renewal does."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._begin()
        begin_in_children(self._begin)
        _confirming.add(self)

    def _begin(self) -> None:
        self._changed = threading.Condition()
        self._leases: list[Lease] = []
        self._thread: threading.Thread | None = None
        self._is_asleep = False

    def soon(self, lease: Lease) -> None:
        """Renew `lease` for its ttl."""
        with self._changed:
            self._leases.append(lease)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._keep_confirming, name="singleton-confirm", daemon=True
                )
                self._thread.start()
            elif self._is_asleep:
                self._changed.notify()

    def has(self, owner: str) -> bool:
        """Whether a lease of this owner is on its way."""
        with self._changed:
            return any(lease.owner == owner for lease in self._leases)

    def flush(self) -> None:
        """Renew now what was handed over. Best effort: what is not renewed runs out."""
        with self._changed:
            leases = list(self._leases)
        try:
            self._store.renew(leases)
        except StoreUnavailable as error:
            logger.warning("calls_not_kept count=%d reason=%s", len(leases), error.reason)
        except Exception:
            # This thread's death would go unseen by those whom it serves.
            logger.exception("calls_not_kept count=%d", len(leases))
        with self._changed:
            done = set(leases)
            self._leases = [lease for lease in self._leases if lease not in done]

    def _keep_confirming(self) -> None:
        idle_s = 0.0
        while True:
            with self._changed:
                while not self._leases and idle_s >= self.LINGER:
                    self._is_asleep = True
                    self._changed.wait()
                self._is_asleep = False
                self._changed.wait(self.WITHIN)
                is_idle = not self._leases
            idle_s = idle_s + self.WITHIN if is_idle else 0.0
            if not is_idle:
                self.flush()


_confirming: Final[weakref.WeakSet[Confirming]] = weakref.WeakSet()


def _flush_all() -> None:
    for each in tuple(_confirming):
        each.flush()


atexit.register(_flush_all)
