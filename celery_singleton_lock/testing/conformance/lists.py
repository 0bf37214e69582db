"""Facts about leases that ran out and are looked for, and about books."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest

from celery_singleton_lock.core.models import LeaseRequest, Page, Park, RecordState, Release
from celery_singleton_lock.leases import LeaseStore

from .fixtures import LONG, SHORT, PassTime, StoreFixtures, grant


def keys_expired(store: LeaseStore) -> list[str]:
    return [record.key for record in store.expired()]


class ExpiryFacts(StoreFixtures):
    @pytest.fixture
    def run(self) -> str:
        return f"run:{uuid.uuid4()}"

    def test_run_whose_holder_died_is_told_of_with_its_note(
        self, store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, run, "a", SHORT, note={"message": "m"}, position=1)
        assert store.expired() == []
        pass_time(SHORT)
        [record] = store.expired()
        assert (record.key, record.owner, record.fence) == (run, "a", lease.fence)
        assert record.state is RecordState.EXPIRED
        assert record.note == {"message": "m"}

    def test_runs_are_told_of_oldest_first_and_no_more_than_asked_for(
        self, store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        # In one call: the store is asked at one time, and a busy machine may take a while to answer.
        ttls = [part * SHORT for part in (6, 4, 5, 3)]
        store.acquire([LeaseRequest(f"{run}:{number}", "a", ttl) for number, ttl in enumerate(ttls)])
        pass_time(6 * SHORT)
        assert keys_expired(store) == [f"{run}:{number}" for number in (3, 1, 2, 0)]
        assert [record.key for record in store.expired(2)] == [f"{run}:3", f"{run}:1"]

    def test_other_leases_are_not_told_of(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        grant(store, key, "a", SHORT)
        grant(store, "runs", "a", SHORT)
        pass_time(SHORT)
        assert store.expired() == []

    def test_run_that_is_renewed_finished_parked_or_forced_is_not_told_of(
        self, store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        names = ("renewed", "finished", "parked", "forced")
        # A busy machine may stand still in between: half a ttl must be long enough for that.
        half = 2 * SHORT
        leases = {name: grant(store, f"{run}:{name}", "a", 2 * half) for name in names}
        pass_time(half)
        assert store.renew([leases["renewed"]]) == [True]
        store.release(
            [
                Release(leases["finished"], position=1),
                Release(leases["parked"], park=Park("heir", SHORT / 4)),
            ]
        )
        store.force_release(f"{run}:forced", who="tester", why="to see")
        pass_time(half)
        assert store.expired() == []
        pass_time(half)
        assert keys_expired(store) == [f"{run}:renewed"]

    def test_run_that_was_taken_over_is_told_of_when_that_runs_out(
        self, store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        grant(store, run, "a", SHORT)
        pass_time(SHORT)
        second = grant(store, run, "b", SHORT)
        assert store.expired() == []
        pass_time(SHORT)
        [record] = store.expired()
        assert (record.owner, record.fence) == ("b", second.fence)

    def test_dismissed_run_is_told_of_no_more_unless_it_runs_out_again(
        self, store: LeaseStore, other_store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        grant(store, run, "a", SHORT)
        pass_time(SHORT)
        records = store.expired()
        assert store.dismiss(records) == [True]
        assert other_store.dismiss(records) == [False]
        assert store.expired() == []
        grant(store, run, "b", SHORT)
        pass_time(SHORT)
        assert keys_expired(store) == [run]

    def test_what_was_taken_over_since_is_not_dismissed(
        self, store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        grant(store, run, "a", SHORT)
        pass_time(SHORT)
        records = store.expired()
        grant(store, run, "b", SHORT)
        assert store.dismiss(records) == [False]
        pass_time(SHORT)
        assert store.dismiss(records) == [False]
        assert keys_expired(store) == [run]

    def test_last_owner_of_a_dismissed_run_may_still_finish_or_come_back(
        self, store: LeaseStore, run: str, pass_time: PassTime
    ) -> None:
        back, late = grant(store, f"{run}:1", "a", SHORT), grant(store, f"{run}:2", "a", SHORT)
        pass_time(SHORT)
        store.dismiss(store.expired())
        assert grant(store, back.key, "a", SHORT, reclaim=back.fence).fence > back.fence
        assert store.release([Release(late, position=1)]) == [True]
        pass_time(SHORT)
        assert keys_expired(store) == [back.key]

    def test_listed_keys_are_records_like_all_others(self, store: LeaseStore, run: str) -> None:
        wanted = {f"{run}:{number}" for number in range(300)}
        store.acquire([LeaseRequest(name, "a", LONG) for name in wanted])
        assert {record.key for record in store.scan("run:")} == wanted
        assert {record.key for record in store.scan("r")} == wanted
        assert {record.key for record in store.scan()} == wanted
        assert {record.key for record in store.scan(run[:8])} == wanted
        [record] = store.peek([f"{run}:7"])
        assert record is not None
        assert record.state is RecordState.HELD


class BookFacts(StoreFixtures):
    def test_page_is_read_by_all_as_it_was_written(
        self, store: LeaseStore, other_store: LeaseStore
    ) -> None:
        text = '{"task": "🐇 \\u0000 \'; --"}'
        [page] = store.write("book", [Page("entry: {a} 🐇", 0, text)])
        assert page == Page("entry: {a} 🐇", page.version, text)
        assert other_store.read("book").pages == (page,)
        assert other_store.read("other").pages == ()

    def test_only_what_changed_since_is_read(self, store: LeaseStore) -> None:
        store.write("book", [Page("a", 0, "1"), Page("b", 0, "1")])
        first = store.read("book")
        [changed] = store.write("book", [Page("a", 0, "2")])
        assert changed.version > max(page.version for page in first.pages)
        second = store.read("book", first.revision)
        assert second.pages == (changed,)
        assert store.read("book", second.revision) == type(second)(second.revision, ())

    def test_removed_page_is_read_as_removed(self, store: LeaseStore) -> None:
        store.write("book", [Page("a", 0, "1")])
        before = store.read("book")
        [removed] = store.write("book", [Page("a", 0, None)])
        assert store.read("book", before.revision).pages == (Page("a", removed.version, None),)

    def test_page_that_is_put_back_does_not_replace_a_newer_one(self, store: LeaseStore) -> None:
        [old] = store.write("book", [Page("a", 0, "old")])
        [new] = store.write("book", [Page("a", 0, "new")])
        [gone] = store.write("book", [Page("b", 0, None)])
        assert store.write("book", [old, Page("b", gone.version - 1, "back")]) == [new, gone]
        assert set(store.read("book").pages) == {new, gone}

    def test_page_that_is_put_back_in_an_empty_book_keeps_its_version(self, store: LeaseStore) -> None:
        page = Page("a", 1_794_987_260_413_847, "1")
        assert store.write("book", [page]) == [page]
        before = store.read("book")
        assert before.pages == (page,)
        newer = Page("a", page.version + 1, "2")
        store.write("book", [newer])
        assert store.read("book", before.revision).pages == (newer,)

    def test_group_of_the_books_name_hears_that_it_changed(
        self, store: LeaseStore, other_store: LeaseStore
    ) -> None:
        before = store.meet("book", "a", LONG)
        assert store.meet("book", "a", LONG).revision == before.revision
        other_store.write("book", [Page("a", 0, "1")])
        after = store.meet("book", "a", LONG)
        assert after.revision > before.revision
        assert after.members == ("a",)
        assert store.meet("other", "a", LONG).revision == 0
        assert store.meet("book", "a", timedelta(0)).revision == after.revision

    def test_book_is_no_record_and_no_loss_of_memory(self, store: LeaseStore) -> None:
        store.meet("book", "a", LONG)
        before = store.incarnation
        store.write("book", [Page("a", 0, "1")])
        store.meet("book", "a", LONG)
        assert store.incarnation == before
        assert list(store.scan()) == []

    def test_a_thousand_pages_go_in_one_call(self, store: LeaseStore) -> None:
        pages = store.write("book", [Page(f"page {n}", 0, f"text {n}") for n in range(1000)])
        assert set(store.read("book").pages) == set(pages)
