"""Facts about being granted a lease, keeping it, and giving it back."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest

from celery_singleton_lock.core.errors import (
    ConfigurationError,
    LeaseLost,
    LeaseReleased,
    StoreUnavailable,
)
from celery_singleton_lock.core.models import Granted, LeaseRequest, Park, Release
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.leases.base import Grant

from .fixtures import LONG, SHORT, PassTime, StoreFixtures, ask, assert_held, grant


class GrantFacts(StoreFixtures):
    def test_free_lease_is_granted(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        lease.ensure_held()
        assert timedelta(0) < lease.remaining < LONG

    def test_two_owners_are_never_inside_together(
        self, store: LeaseStore, other_store: LeaseStore, key: str
    ) -> None:
        grant(store, key, "a")
        answer = ask(other_store, key, "b")
        assert_held(answer, by="a")
        assert timedelta(0) < answer.remaining <= LONG

    def test_released_lease_is_granted_to_the_next(self, store: LeaseStore, key: str) -> None:
        assert store.release([Release(grant(store, key, "a"))]) == [True]
        answer = ask(store, key, "b")
        assert isinstance(answer, Granted)
        assert answer.takeovers == 0

    def test_lease_whose_release_is_on_its_way_is_granted_to_the_next(
        self, store: LeaseStore, key: str
    ) -> None:
        for number in range(20):
            lease = grant(store, key, f"a{number}")
            is_released = store.start_release([Release(lease)])
            following = grant(store, key, f"b{number}")
            assert is_released() == [True]
            with pytest.raises(LeaseReleased):
                lease.ensure_held()
            assert store.start_release([Release(following)])() == [True]

    def test_release_on_its_way_that_comes_too_late_says_so(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        grant(store, key, "b")
        assert store.start_release([Release(lease, position=1)])() == [False]

    def test_lease_asked_for_ahead_is_granted_as_any_other(self, store: LeaseStore, key: str) -> None:
        for number in range(20):
            answers = store.start_acquire([LeaseRequest(key, f"a{number}", LONG)])
            assert_held(ask(store, key, f"b{number}"), by=f"a{number}")
            [answer] = answers()
            assert isinstance(answer, Granted)
            assert not answer.again
            answer.lease.ensure_held()
            assert store.release([Release(answer.lease)]) == [True]

    def test_lease_asked_for_ahead_waits_behind_a_release_on_its_way(
        self, store: LeaseStore, key: str
    ) -> None:
        for number in range(20):
            is_released = store.start_release([Release(grant(store, key, f"a{number}"))])
            answers = store.start_acquire([LeaseRequest(key, f"b{number}", LONG)])
            assert is_released() == [True]
            [answer] = answers()
            assert isinstance(answer, Granted)
            store.undo([answer])

    def test_answer_that_was_fetched_too_late_grants_nothing(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        answers = store.start_acquire([LeaseRequest(key, "a", SHORT)])
        pass_time(SHORT)
        with pytest.raises(StoreUnavailable):
            answers()
        assert isinstance(ask(store, key, "b"), Granted)

    def test_expired_lease_is_taken_over(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        grant(store, key, "a", SHORT)
        pass_time(SHORT)
        answer = ask(store, key, "b")
        assert isinstance(answer, Granted)
        assert answer.takeovers == 1

    def test_takeovers_in_a_row_are_counted_until_a_holder_gives_back(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        for owner in ("a", "b"):
            grant(store, key, owner, SHORT)
            pass_time(SHORT)
        answer = ask(store, key, "c")
        assert answer.takeovers == 2
        store.release([Release(answer.lease)])
        assert ask(store, key, "d").takeovers == 0

    def test_holder_knows_its_lease_is_over_before_anybody_else_is_let_in(
        self, store: LeaseStore, key: str
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        while not isinstance(ask(store, key, "b"), Granted):
            time.sleep(0.002)
        assert not lease.is_held
        with pytest.raises(LeaseLost):
            lease.ensure_held()

    def test_expired_owner_cannot_extend_its_successors_lease(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        first = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        grant(store, key, "b", SHORT)
        first.extend(float("inf"))  # a holder whose own clock stood still
        assert store.renew([first]) == [False]
        pass_time(SHORT)
        grant(store, key, "c")

    def test_expired_owner_cannot_free_its_successors_lease(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        first = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        grant(store, key, "b")
        assert store.release([Release(first, position=7)]) == [False]
        assert_held(ask(store, key, "c", position=1), by="b")

    def test_owner_that_asks_again_gets_the_same_fence(self, store: LeaseStore, key: str) -> None:
        first = grant(store, key, "a", timedelta(seconds=30))
        answer = ask(store, key, "a", LONG)
        assert isinstance(answer, Granted)
        assert answer.again
        assert answer.lease.fence == first.fence
        assert ask(store, key, "b").remaining > timedelta(minutes=1)

    def test_fences_grow_over_release_expiry_and_force(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        fences = []
        lease = grant(store, key, "a")
        fences.append(lease.fence)
        store.release([Release(lease)])
        fences.append(grant(store, key, "b", SHORT).fence)
        pass_time(SHORT)
        fences.append(grant(store, key, "c").fence)
        store.force_release(key, who="tester", why="to see")
        fences.append(grant(store, key, "a").fence)
        assert fences == sorted(set(fences))

    def test_fences_grow_although_the_stores_clock_went_back(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        an_hour_ahead = lease.fence + 3600 * 1_000_000
        lease.regain(an_hour_ahead, float("inf"))
        assert store.renew([lease]) == [True]  # put back with a fence of the future
        store.release([Release(lease)])
        assert grant(store, key, "b").fence > an_hour_ahead

    def test_renewed_lease_outlives_its_ttl(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        # A busy machine may stand still in between: half a ttl must be long enough for that.
        ttl = timedelta(seconds=2)
        lease = grant(store, key, "a", ttl)
        for _ in range(3):
            pass_time(ttl * 0.45)
            assert store.renew([lease]) == [True]
        lease.ensure_held()
        assert_held(ask(store, key, "b"), by="a")

    def test_lease_is_not_renewed_after_its_deadline(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        assert store.renew([lease]) == [False]
        grant(store, key, "b")

    def test_store_does_not_renew_what_ran_out_by_its_own_clock(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        lease.extend(float("inf"))  # a holder whose own clock stood still
        assert store.renew([lease]) == [False]

    def test_released_lease_raises_on_any_use(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        store.release([Release(lease)])
        assert not lease.is_held
        with pytest.raises(LeaseReleased):
            lease.ensure_held()
        with pytest.raises(LeaseReleased):
            store.renew([lease])
        with pytest.raises(LeaseReleased):
            store.release([Release(lease)])

    def test_undo_frees_what_was_granted(self, store: LeaseStore, key: str) -> None:
        answers = store.acquire([LeaseRequest(key, "a", LONG)])
        store.undo(answers)
        grant(store, key, "b")

    def test_undo_leaves_what_the_owner_held_before(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        store.undo(store.acquire([LeaseRequest(key, "a", LONG)]))
        assert_held(ask(store, key, "b"), by="a")
        assert store.renew([lease]) == [True]

    def test_call_that_was_sent_twice_was_granted_once(self, store: LeaseStore, key: str) -> None:
        requests = [LeaseRequest(key, "a", LONG)]
        first, second, other = (store._acquire(requests, call)[0] for call in "xxy")
        assert isinstance(first, Grant)
        assert isinstance(second, Grant)
        assert isinstance(other, Grant)
        assert first.fence == second.fence == other.fence
        assert (first.again, second.again, other.again) == (False, False, True)

    def test_release_that_was_sent_twice_is_written_once(self, store: LeaseStore, key: str) -> None:
        release = Release(grant(store, key, "a"), position=1)
        assert list(store._release([release])) == [True]
        grant(store, key, "b")
        assert list(store._release([release])) == [True]
        assert_held(ask(store, key, "c"), by="b")

    def test_undo_does_not_hide_the_death_of_an_earlier_holder(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        grant(store, key, "a", SHORT)
        pass_time(SHORT)
        store.undo(store.acquire([LeaseRequest(key, "b", LONG)]))
        assert ask(store, key, "c").takeovers == 1

    def test_acquire_all_keeps_nothing_unless_it_gets_everything(
        self, store: LeaseStore, key: str
    ) -> None:
        grant(store, f"{key}:taken", "x")
        wanted = [LeaseRequest(f"{key}:free", "a", LONG), LeaseRequest(f"{key}:taken", "a", LONG)]
        answers = store.acquire_all(wanted)
        assert [isinstance(answer, Granted) for answer in answers] == [True, False]
        grant(store, f"{key}:free", "b")

    def test_waiter_hears_of_a_release(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        releasing = threading.Timer(0.2, lambda: store.release([Release(lease)]))
        releasing.start()
        give_up_at = time.monotonic() + 10
        with store.watch(key) as watch:
            while not isinstance(ask(store, key, "b", waiting=True), Granted):
                assert time.monotonic() < give_up_at
                watch.wait(timedelta(seconds=10))
        releasing.join()

    def test_store_that_tells_of_releases_tells_of_those_that_somebody_waits_for(
        self, store: LeaseStore, key: str
    ) -> None:
        awaited, listed, ignored = key, f"run:{key}", f"{key}:nobody"
        leases = [grant(store, each, "a") for each in (ignored, listed, awaited)]
        releases = store.releases()
        if releases is None:
            return
        with releases as told:
            for each in (listed, awaited):
                ask(store, each, "b", waiting=True)
            store.release([Release(lease) for lease in leases])
            assert {told.next(timedelta(seconds=10)) for _ in range(2)} == {listed, awaited}
            # Others may wait behind the one that asked.
            store.release([Release(grant(store, awaited, "c"))])
            assert told.next(timedelta(seconds=10)) == awaited
            assert told.next(timedelta(seconds=0.1)) is None

    @pytest.mark.parametrize(
        "arguments",
        [
            {"key": ""},
            {"key": "nul\0"},
            {"key": "\ud800"},
            {"key": "x" * 100_000},
            {"owner": ""},
            {"ttl": timedelta(0)},
            {"ttl": timedelta(seconds=-1)},
            {"position": -1},
            {"position": 2**53},
        ],
        ids=str,
    )
    def test_request_that_no_store_could_keep_is_refused_early(
        self, arguments: dict[str, object]
    ) -> None:
        with pytest.raises(ConfigurationError):
            LeaseRequest(**({"key": "k", "owner": "o", "ttl": LONG} | arguments))  # type: ignore[arg-type]

    def test_park_and_position_cannot_be_part_of_an_undo(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        with pytest.raises(ConfigurationError):
            Release(lease, undo=True, park=Park("heir", LONG))
        with pytest.raises(ConfigurationError):
            Release(lease, undo=True, position=1)
