"""Facts about bad days: a store that forgets, restarts, or cannot be reached in time."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar

import pytest

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Done, Granted, LeaseRequest, Release
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.testing.servers import TcpProxy

from .fixtures import LONG, SHORT, PassTime, StoreFixtures, ask, assert_held, grant

Result = TypeVar("Result")
LoseMemory = Callable[[], None]
RestartServer = Callable[[], None]


class MemoryLossFacts(StoreFixtures):
    @pytest.fixture
    def lose_memory(self) -> LoseMemory:
        raise NotImplementedError("override lose_memory")

    def test_forgotten_lease_is_put_back_by_its_renewal(
        self, store: LeaseStore, key: str, lose_memory: LoseMemory
    ) -> None:
        lease = grant(store, key, "a", note={"task": "report"})
        fence = lease.fence
        lose_memory()
        assert eventually(lambda: store.renew([lease])) == [True]
        assert lease.fence == fence
        assert_held(ask(store, key, "b"), by="a")
        [record] = store.peek([key])
        assert record is not None
        assert record.fence == fence
        assert record.note == {"task": "report"}

    def test_forgotten_lease_stays_lost_once_another_was_granted(
        self, store: LeaseStore, key: str, lose_memory: LoseMemory
    ) -> None:
        lease = grant(store, key, "a")
        lose_memory()
        other = eventually(lambda: grant(store, key, "b"))
        assert other.fence > lease.fence
        store.release([Release(other)])
        assert store.renew([lease]) == [False]

    def test_lease_is_not_put_back_over_a_grant_that_came_in_between(
        self, store: LeaseStore, key: str, lose_memory: LoseMemory
    ) -> None:
        lease = grant(store, key, "a")
        lose_memory()
        eventually(lambda: grant(store, key, "b"))
        assert list(store._restore([lease])) == [False]
        assert_held(ask(store, key, "c"), by="b")

    def test_forgotten_lease_is_not_put_back_after_its_deadline(
        self, store: LeaseStore, key: str, lose_memory: LoseMemory, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        lose_memory()
        pass_time(SHORT)
        assert eventually(lambda: store.renew([lease])) == [False]
        assert eventually(lambda: store.release([Release(lease, position=1)])) == [False]
        assert isinstance(ask(store, key, "b", position=1), Granted)

    def test_holder_may_finish_in_a_store_that_forgot(
        self, store: LeaseStore, key: str, lose_memory: LoseMemory
    ) -> None:
        lease = grant(store, key, "a", position=1)
        lose_memory()
        assert eventually(lambda: store.release([Release(lease, position=1, outcome="ok")])) == [True]
        assert ask(store, key, "b", position=1) == Done(1, "ok")

    def test_memory_loss_is_noticed_and_told_once(
        self, store: LeaseStore, key: str, lose_memory: LoseMemory
    ) -> None:
        told: list[int] = []
        store.on_memory_loss(lambda: told.append(store.incarnation))
        store.now()
        before = store.incarnation
        store.now()
        assert (store.incarnation, told) == (before, [])
        lose_memory()
        eventually(store.now)
        assert store.incarnation > before
        assert told == [store.incarnation]
        store.now()
        assert len(told) == 1


class RestartFacts(StoreFixtures):
    @pytest.fixture
    def restart_server(self) -> RestartServer:
        raise NotImplementedError("override restart_server")

    def test_server_may_be_killed_and_restarted_between_any_two_calls(
        self, store: LeaseStore, key: str, restart_server: RestartServer
    ) -> None:
        lease = grant(store, key, "a")
        restart_server()
        assert_held(eventually(lambda: ask(store, key, "b")), by="a")
        restart_server()
        assert eventually(lambda: store.renew([lease])) == [True]
        restart_server()
        assert eventually(lambda: store.release([Release(lease, position=3)])) == [True]
        restart_server()
        assert eventually(lambda: ask(store, key, "b", position=3)) == Done(3)
        successor = eventually(lambda: grant(store, key, "c"))
        assert successor.fence > lease.fence


class NetworkFacts(StoreFixtures):
    @pytest.fixture
    def proxy(self) -> TcpProxy:
        raise NotImplementedError("override proxy")

    def test_answer_that_comes_too_late_is_not_a_grant(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        store.now()
        proxy.delay(0.4)
        with pytest.raises(StoreUnavailable):
            store.acquire([LeaseRequest(key, "a", timedelta(milliseconds=300))])
        proxy.heal()
        eventually(lambda: grant(store, key, "b"))

    def test_silent_server_is_unavailable_within_the_timeout(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        lease = grant(store, key, "a")
        proxy.blackhole()
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            store.renew([lease])
        assert time.monotonic() - began < 10
        proxy.heal()
        assert eventually(lambda: store.renew([lease])) == [True]

    def test_server_that_is_gone_is_unavailable_and_then_used_again(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        lease = grant(store, key, "a")
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            store.renew([lease])
        proxy.heal()
        assert eventually(lambda: store.renew([lease])) == [True]

    def test_connection_that_was_cut_is_replaced_unseen(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        lease = grant(store, key, "a")
        proxy.cut()
        assert store.renew([lease]) == [True]

    def test_release_on_its_way_when_the_connection_is_cut_is_sent_again_first(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        store.release([Release(grant(store, key, "a"))])
        lease = grant(store, key, "a")
        is_released = store.start_release([Release(lease, position=1)])
        proxy.cut()
        grant(store, key, "b")
        assert is_released() == [True]

    def test_lease_asked_for_ahead_when_the_connection_is_cut_is_granted_once(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        store.release([Release(grant(store, key, "a"))])
        answers = store.start_acquire([LeaseRequest(key, "a", LONG)])
        proxy.cut()
        [answer] = answers()
        assert isinstance(answer, Granted)
        assert not answer.again
        assert store.release([Release(answer.lease)]) == [True]

    def test_release_on_its_way_to_a_server_that_is_gone_is_unavailable(
        self, store: LeaseStore, key: str, proxy: TcpProxy
    ) -> None:
        store.release([Release(grant(store, key, "a"))])
        lease = grant(store, key, "a")
        proxy.refuse()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            store.start_release([Release(lease)])()
        proxy.heal()
        assert eventually(lambda: store.release([Release(lease)])) == [True]


def eventually(call: Callable[[], Result], *, within: float = 20.0) -> Result:
    """What `call` returns once the store can be reached again."""
    give_up_at = time.monotonic() + within
    while True:
        try:
            return call()
        except StoreUnavailable:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)
