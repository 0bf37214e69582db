"""Asks the store, the broker and the database without ever holding up Flower's event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from celery_singleton_lock.core.errors import (
    BrokerUnavailable,
    LedgerUnavailable,
    SingletonError,
    StoreUnavailable,
)

Answer = TypeVar("Answer")

PATIENCE_S: Final = 8.0
"""How long somebody who looks at a page waits for it to say that there is no answer."""
AT_MOST_AT_ONCE: Final = 8


class NoAnswer(SingletonError):
    """Whoever was asked is away, or takes too long."""


class Asking:
    """Has threads of its own: Flower's are few, and a store that hangs must not take them all."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._threads = ThreadPoolExecutor(AT_MOST_AT_ONCE, thread_name_prefix="singleton-pages")

    async def ask(self, call: Callable[[], Answer]) -> Answer:
        """What `call` returns, from another thread. Raises `NoAnswer`; then it may still go on."""
        return await self.wait_for(self.start(call))

    def start(self, call: Callable[[], Answer]) -> asyncio.Future[Answer]:
        return asyncio.get_running_loop().run_in_executor(self._threads, call)

    async def wait_for(self, asked: asyncio.Future[Answer], patience_s: float | None = None) -> Answer:
        patience_s = self._patience_s if patience_s is None else patience_s
        try:
            return await asyncio.wait_for(asyncio.shield(asked), patience_s)
        except TimeoutError:
            asked.add_done_callback(_look_at_it)
            raise NoAnswer(f"no answer within {patience_s:g} seconds") from None
        except (BrokerUnavailable, LedgerUnavailable, StoreUnavailable) as error:
            raise NoAnswer(str(error)) from error


def _look_at_it(asked: asyncio.Future[Answer]) -> None:
    """So that asyncio does not complain of an error that nobody waits for any more."""
    if not asked.cancelled():
        asked.exception()


class Snapshot(Generic[Answer]):
    """What `take` returns, taken once for all who look at the same time, and anew when it is old. What
    takes long is taken less often, and what hangs is not begun again. For the event loop only."""

    REST_PER_WORK: Final = 4

    def __init__(self, asking: Asking, take: Callable[[], Answer], *, fresh_for_s: float = 1.0) -> None:
        self._asking = asking
        self._take = take
        self._fresh_for_s = fresh_for_s
        self._taken: asyncio.Future[Answer] | None = None
        self._good_until = 0.0

    async def get(self, patience_s: float | None = None) -> Answer:
        """Raises `NoAnswer`, after so many seconds, or as many as whoever looks at a page waits."""
        taken = self._taken
        if taken is None or (taken.done() and time.monotonic() >= self._good_until):
            taken = self._taken = self._asking.start(self._timed_take)
        return await self._asking.wait_for(taken, patience_s)

    def forget(self) -> None:
        """Somebody changed what it shows, also for those who are being answered now."""
        self._taken = None

    def _timed_take(self) -> Answer:
        began = time.monotonic()
        try:
            return self._take()
        finally:
            now = time.monotonic()
            self._good_until = now + max(self._fresh_for_s, self.REST_PER_WORK * (now - began))
