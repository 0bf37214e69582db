"""A lock for a user's own code, over any lease store. No Celery in it."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import random
import socket
import threading
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from types import TracebackType
from typing import Any, Protocol, TypeVar, cast

from celery_singleton_lock.core.errors import (
    ConfigurationError,
    LeaseLost,
    LockNotAcquired,
    StoreUnavailable,
)
from celery_singleton_lock.core.models import (
    Granted,
    Held,
    Lease,
    LeaseRequest,
    Release,
    check_name,
)
from celery_singleton_lock.leases import LeaseStore

from .keep_alive import KeepAlive

logger = logging.getLogger(__name__)

Function = TypeVar("Function", bound=Callable[..., Any])
Seconds = float | timedelta
_NOBODY = Held("nobody known", timedelta(0))


class Parts(Protocol):
    """What a lock works with; asked for when it is entered, not when it is defined."""

    @property
    def store(self) -> LeaseStore: ...

    @property
    def keep_alive(self) -> KeepAlive: ...

    @property
    def lock_ttl(self) -> timedelta: ...

    @property
    def shortest_lock_ttl(self) -> timedelta: ...


class SingletonLock:
    """One lock, to be entered by ``with``, by ``async with``, or around a function.

    It is renewed for as long as the block runs. It is not re-entrant: a block inside itself waits for
    itself. On leaving, `LeaseLost` is raised if somebody else was let in meanwhile.
    """

    def __init__(
        self,
        key: str,
        parts: Callable[[], Parts],
        *,
        ttl: Seconds | None = None,
        wait: Seconds | None = 0,
        on_lost: Callable[[LeaseLost], None] | None = None,
    ) -> None:
        self._name = key
        self._key = f"lock:{key}"
        self._parts = parts
        self._ttl = None if ttl is None else _span("ttl", ttl)
        self._wait = None if wait is None else _span("wait", wait)
        self._on_lost = on_lost
        self._entered: tuple[Parts, Lease] | None = None
        # Refuse here, where it is written, what could not work where it is used.
        check_name("key", key)
        LeaseRequest(self._key, "nobody", timedelta(seconds=1) if self._ttl is None else self._ttl)

    def __enter__(self) -> Lease:
        parts, request, patience = self._begin()
        answer = _ask(parts.store, request)
        if not isinstance(answer, Granted):
            patience.pause(answer)  # which raises if there is none
            with parts.store.watch(self._key) as watch:
                while not isinstance(answer := _ask(parts.store, request), Granted):
                    watch.wait(patience.pause(answer))
        return self._enter(parts, answer.lease)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        parts, lease = self._exit()
        _give_back(parts, lease, raise_if_lost=error is None)

    async def __aenter__(self) -> Lease:
        parts, request, patience = self._begin()
        while not isinstance(answer := await _ask_in_thread(parts.store, request), Granted):
            # No thread is kept waiting for a call: a hundred waiting coroutines would use up all.
            pause = patience.pause(answer)
            await asyncio.sleep(min(pause.total_seconds(), patience.backoff()))
        return self._enter(parts, answer.lease)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        parts, lease = self._exit()
        giving_back = asyncio.to_thread(_give_back, parts, lease, raise_if_lost=error is None)
        # A cancelled task gives its lock back all the same.
        await asyncio.shield(giving_back)

    def __call__(self, function: Function) -> Function:
        """Run `function`, plain or a coroutine, inside the lock; each call enters a lock of its own."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def locked_coroutine(*args: Any, **kwargs: Any) -> Any:
                async with self._fresh():
                    return await function(*args, **kwargs)

            return cast(Function, locked_coroutine)

        @functools.wraps(function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            with self._fresh():
                return function(*args, **kwargs)

        return cast(Function, locked)

    def _fresh(self) -> SingletonLock:
        return SingletonLock(
            self._name, self._parts, ttl=self._ttl, wait=self._wait, on_lost=self._on_lost
        )

    def _begin(self) -> tuple[Parts, LeaseRequest, _Patience]:
        if self._entered is not None:
            raise ConfigurationError(
                f"lock {self._name!r} is entered already: write singleton_lock(...) anew for each block"
            )
        parts = self._parts()
        ttl = self._ttl if self._ttl is not None else parts.lock_ttl
        if ttl < parts.shortest_lock_ttl:
            raise ConfigurationError(
                f"ttl={ttl} of lock {self._name!r} leaves no time for two renewals: give "
                f"{parts.shortest_lock_ttl.total_seconds():g} seconds or more, or lower "
                "singleton_slot_ttl, and with it the store's timeout"
            )
        request = LeaseRequest(
            self._key,
            _new_owner(),
            ttl,
            note=_holder(),
            waiting=self._wait != timedelta(0),
        )
        return parts, request, _Patience(self._name, self._wait)

    def _enter(self, parts: Parts, lease: Lease) -> Lease:
        parts.keep_alive.guard(lease, on_lost=self._on_lost)
        self._entered = (parts, lease)
        return lease

    def _exit(self) -> tuple[Parts, Lease]:
        if self._entered is None:
            raise ConfigurationError(f"lock {self._name!r} was not entered")
        entered, self._entered = self._entered, None
        return entered


class _Patience:
    """How much longer to wait; `None` is for ever."""

    FIRST = 0.02
    LONGEST = 1.0

    def __init__(self, name: str, wait: timedelta | None) -> None:
        self._name = name
        self._began = time.monotonic()
        self._wait = float("inf") if wait is None else wait.total_seconds()
        self._delay = self.FIRST

    def pause(self, answer: Held | StoreUnavailable) -> timedelta:
        """How long to wait for a better answer. Raises when the waiting is over."""
        waited = time.monotonic() - self._began
        left = self._wait - waited
        if left <= 0:
            if isinstance(answer, Held):
                raise LockNotAcquired(self._name, answer.by, waited)
            raise answer
        if isinstance(answer, Held):
            # An heir, or a holder that died, opens the lock without a call: be there then.
            left = min(left, max(answer.remaining.total_seconds(), self.FIRST))
        else:
            left = min(left, self.backoff())
        return timedelta(seconds=left)

    def backoff(self) -> float:
        delay, self._delay = self._delay, min(self._delay * 2, self.LONGEST)
        return delay * random.uniform(0.5, 1.0)  # nosec B311 # noqa: S311 - jitter, not a secret


def _ask(store: LeaseStore, request: LeaseRequest) -> Granted | Held | StoreUnavailable:
    try:
        [answer] = store.acquire([request])
    except StoreUnavailable as error:
        return error
    # Without a position nothing is ever Done.
    return answer if isinstance(answer, Granted | Held) else _NOBODY


async def _ask_in_thread(store: LeaseStore, request: LeaseRequest) -> Granted | Held | StoreUnavailable:
    asking = asyncio.ensure_future(asyncio.to_thread(_ask, store, request))
    try:
        return await asyncio.shield(asking)
    except asyncio.CancelledError:
        # The thread goes on, and may be granted what nobody wants any more.
        asking.add_done_callback(lambda asked: _undo(store, asked))
        raise


def _undo(store: LeaseStore, asked: asyncio.Future[Granted | Held | StoreUnavailable]) -> None:
    if not asked.cancelled() and isinstance(answer := asked.result(), Granted):
        threading.Thread(target=store.undo, args=([answer],), daemon=True).start()


def _give_back(parts: Parts, lease: Lease, *, raise_if_lost: bool) -> None:
    parts.keep_alive.forget(lease)
    fence = lease.fence
    try:
        [written] = parts.store.release([Release(lease)])
    except StoreUnavailable as error:
        logger.warning("lock_not_released key=%r reason=%s", lease.key, error.reason)
        # It runs out by itself. Whether it was ours to the end, only the deadline can say now.
        written = lease.is_held
        lease.spend()
    if not written:
        logger.warning("lock_was_lost key=%r fence=%d", lease.key, fence)
        if raise_if_lost:
            raise LeaseLost(lease.key, fence)


def _new_owner() -> str:
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex}"


def _holder() -> dict[str, str | int]:
    return {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "thread": threading.current_thread().name,
    }


def _span(name: str, value: Seconds) -> timedelta:
    try:
        span = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigurationError(f"{name}={value!r} is no time: give seconds, or a timedelta") from None
    if span < timedelta(0):
        raise ConfigurationError(f"{name}={value!r} is negative: give seconds, or a timedelta")
    return span
