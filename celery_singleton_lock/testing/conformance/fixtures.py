"""What the facts have in common: a store, keys of their own, and time that passes."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Granted, Held, Lease, LeaseRequest
from celery_singleton_lock.leases import LeaseStore

LONG = timedelta(hours=1)
SHORT = timedelta(milliseconds=400)
_TRIES = 3

OpenStore = Callable[[], LeaseStore]


class StoreFixtures:
    """Inherit and override `open_again`; the rest follows from it."""

    @pytest.fixture
    def open_again(self) -> OpenStore:
        raise NotImplementedError("override open_again: see celery_singleton_lock.testing.conformance")

    @pytest.fixture
    def store(self, open_again: OpenStore) -> Iterator[LeaseStore]:
        store = open_again()
        yield store
        store.close()

    @pytest.fixture
    def other_store(self, open_again: OpenStore) -> Iterator[LeaseStore]:
        """The same records, through other connections."""
        store = open_again()
        yield store
        store.close()

    @pytest.fixture
    def key(self) -> str:
        return f"fact:{uuid.uuid4().hex[:8]}"

    @pytest.fixture
    def pass_time(self) -> Callable[[timedelta], None]:
        """Let at least this much time pass, on the store's clock and on the holder's."""

        def sleep(span: timedelta) -> None:
            time.sleep(span.total_seconds() + 0.05)

        return sleep


PassTime = Callable[[timedelta], None]


def ask(store: LeaseStore, key: str, owner: str, ttl: timedelta = LONG, **more: Any) -> Any:
    request = LeaseRequest(key, owner, ttl, **more)
    for _ in range(_TRIES - 1):
        # A busy machine may stand still for longer than a short lease lasts: then nothing is granted.
        with suppress(StoreUnavailable):
            [answer] = store.acquire([request])
            return answer
    [answer] = store.acquire([request])
    return answer


def grant(store: LeaseStore, key: str, owner: str, ttl: timedelta = LONG, **more: Any) -> Lease:
    answer = ask(store, key, owner, ttl, **more)
    assert isinstance(answer, Granted), answer
    return answer.lease


def assert_held(answer: object, by: str) -> None:
    assert isinstance(answer, Held), answer
    assert answer.by == by
