"""Facts about what a record remembers: positions, parking, and the last owner's rights."""

from __future__ import annotations

from datetime import timedelta

from celery_singleton_lock.core.models import FINISHED, Done, Granted, LeaseRequest, Park, Release
from celery_singleton_lock.leases import LeaseStore

from .fixtures import LONG, SHORT, PassTime, StoreFixtures, ask, assert_held, grant


def finish(store: LeaseStore, key: str, position: int, **more: object) -> None:
    lease = grant(store, key, f"finisher of {position}")
    assert store.release([Release(lease, position=position, **more)]) == [True]  # type: ignore[arg-type]


class PositionFacts(StoreFixtures):
    def test_done_is_answered_for_every_position_up_to_the_recorded_one(
        self, store: LeaseStore, key: str
    ) -> None:
        finish(store, key, 5, outcome="ok")
        for position in (0, 1, 5):
            assert ask(store, key, "a", position=position) == Done(5, "ok")
        assert isinstance(ask(store, key, "a", position=6), Granted)

    def test_done_is_answered_while_somebody_works_on_a_later_position(
        self, store: LeaseStore, key: str
    ) -> None:
        finish(store, key, 5)
        grant(store, key, "a", position=6)
        assert ask(store, key, "b", position=5) == Done(5)
        assert_held(ask(store, key, "b", position=6), by="a")

    def test_position_never_goes_back(self, store: LeaseStore, key: str) -> None:
        finish(store, key, 5, outcome="five")
        finish(store, key, 3, outcome="three")
        assert ask(store, key, "a", position=5) == Done(5, "five")

    def test_outcome_of_the_same_position_is_replaced(self, store: LeaseStore, key: str) -> None:
        finish(store, key, 5, outcome="letter pending")
        finish(store, key, 5, outcome="dead")
        assert ask(store, key, "a", position=5) == Done(5, "dead")

    def test_outcome_does_not_outlive_its_position(self, store: LeaseStore, key: str) -> None:
        finish(store, key, 5, outcome="five")
        finish(store, key, 6)
        assert ask(store, key, "a", position=6) == Done(6, None)

    def test_finished_is_beyond_every_position(self, store: LeaseStore, key: str) -> None:
        finish(store, key, FINISHED)
        assert ask(store, key, "a", position=10**12) == Done(FINISHED)

    def test_positions_are_exact_at_the_size_of_microseconds(self, store: LeaseStore, key: str) -> None:
        slot = 1_794_987_260_413_847
        finish(store, key, slot)
        assert ask(store, key, "a", position=slot) == Done(slot)
        assert isinstance(ask(store, key, "a", position=slot + 1), Granted)

    def test_request_without_position_is_a_plain_lock(self, store: LeaseStore, key: str) -> None:
        finish(store, key, FINISHED)
        grant(store, key, "a")

    def test_position_outlives_a_later_holder_that_died(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        finish(store, key, 5)
        grant(store, key, "a", SHORT, position=6)
        pass_time(SHORT)
        assert ask(store, key, "b", position=5) == Done(5)

    def test_record_is_forgotten_after_its_time(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        finish(store, key, 5, keep_for=SHORT)
        assert ask(store, key, "a", position=5) == Done(5)
        pass_time(SHORT)
        assert isinstance(ask(store, key, "a", position=5), Granted)

    def test_release_without_position_does_not_shorten_the_positions_life(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        finish(store, key, 5, keep_for=LONG)
        store.release([Release(grant(store, key, "a"), keep_for=SHORT)])
        pass_time(SHORT)
        assert ask(store, key, "b", position=5) == Done(5)


class ParkFacts(StoreFixtures):
    def test_only_the_heir_enters_a_parked_lease(self, store: LeaseStore, key: str) -> None:
        store.release([Release(grant(store, key, "a"), park=Park("run 1", LONG))])
        assert_held(ask(store, key, "b"), by="run 1")
        assert_held(ask(store, key, "c", heir="run 2"), by="run 1")
        grant(store, key, "d", heir="run 1")

    def test_heirs_lease_is_held_like_any_other(self, store: LeaseStore, key: str) -> None:
        store.release([Release(grant(store, key, "a"), park=Park("run 1", LONG))])
        grant(store, key, "b", heir="run 1")
        assert_held(ask(store, key, "c", heir="run 1"), by="b")

    def test_park_runs_out_without_counting_as_a_death(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        store.release([Release(grant(store, key, "a"), park=Park("run 1", SHORT))])
        pass_time(SHORT)
        answer = ask(store, key, "b")
        assert isinstance(answer, Granted)
        assert answer.takeovers == 0

    def test_release_by_the_heir_ends_the_park(self, store: LeaseStore, key: str) -> None:
        store.release([Release(grant(store, key, "a"), park=Park("run 1", LONG))])
        store.release([Release(grant(store, key, "b", heir="run 1"))])
        grant(store, key, "c")

    def test_undo_by_the_heir_leaves_the_park(self, store: LeaseStore, key: str) -> None:
        store.release([Release(grant(store, key, "a"), park=Park("run 1", LONG))])
        store.undo(store.acquire([LeaseRequest(key, "b", LONG, heir="run 1")]))
        assert_held(ask(store, key, "c"), by="run 1")
        grant(store, key, "d", heir="run 1")

    def test_lease_parked_for_nobody_is_closed_to_all(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        store.release([Release(grant(store, key, "a"), park=Park(None, SHORT))])
        assert_held(ask(store, key, "a"), by="a")
        assert_held(ask(store, key, "b", heir="run 1"), by="a")
        pass_time(SHORT)
        grant(store, key, "b")

    def test_parked_record_is_kept_for_as_long_as_it_is_parked(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        park = Park("run 1", timedelta(minutes=1))
        store.release([Release(grant(store, key, "a"), park=park, keep_for=timedelta(0))])
        pass_time(SHORT)
        assert_held(ask(store, key, "b"), by="run 1")


class LastOwnerFacts(StoreFixtures):
    def test_last_owner_may_finish_after_its_deadline(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT, position=1)
        pass_time(SHORT)
        assert store.release([Release(lease, position=1, outcome="late")]) == [True]
        assert ask(store, key, "b", position=1) == Done(1, "late")

    def test_last_owner_may_not_finish_once_another_was_granted(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT, position=1)
        pass_time(SHORT)
        store.release([Release(grant(store, key, "b", position=1))])
        assert store.release([Release(lease, position=1)]) == [False]
        assert isinstance(ask(store, key, "c", position=1), Granted)

    def test_last_owner_may_acquire_anew_with_a_larger_fence(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        answer = ask(store, key, "a", reclaim=lease.fence)
        assert isinstance(answer, Granted)
        assert answer.lease.fence > lease.fence
        assert answer.takeovers == 0

    def test_heir_may_acquire_anew_while_its_park_lasts(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        store.release([Release(grant(store, key, "a"), park=Park("run 1", LONG))])
        lease = grant(store, key, "b", SHORT, heir="run 1")
        pass_time(SHORT)
        assert grant(store, key, "b", reclaim=lease.fence).fence > lease.fence

    def test_nobody_acquires_anew_once_another_was_granted(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        other = grant(store, key, "b")
        assert_held(ask(store, key, "a", reclaim=lease.fence), by="b")
        store.release([Release(other)])
        assert_held(ask(store, key, "a", reclaim=lease.fence), by="b")

    def test_nobody_acquires_anew_from_an_older_lease_of_its_own(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        first = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        grant(store, key, "a", SHORT, reclaim=first.fence)
        pass_time(SHORT)
        assert_held(ask(store, key, "a", reclaim=first.fence), by="a")

    def test_nobody_acquires_anew_what_it_gave_back(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        store.release([Release(lease)])
        assert_held(ask(store, key, "a", reclaim=lease.fence), by="a")

    def test_nobody_acquires_anew_what_the_store_does_not_know(
        self, store: LeaseStore, key: str
    ) -> None:
        assert_held(ask(store, key, "a", reclaim=12345), by="")

    def test_nobody_acquires_anew_what_was_taken_by_force(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        store.force_release(key, who="tester", why="to see")
        assert_held(ask(store, key, "a", reclaim=lease.fence), by="a")
