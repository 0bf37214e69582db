"""Facts about large batches, awkward names, and what people can see and do."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from celery_singleton_lock.core.models import Done, Granted, LeaseRequest, RecordState, Release
from celery_singleton_lock.leases import LeaseStore

from .fixtures import LONG, SHORT, PassTime, StoreFixtures, ask, assert_held, grant

AWKWARD_KEYS = {
    "spaces": "a key with  spaces ",
    "colons": "task:report:eu:",
    "braces": "{a}{b}}{",
    "newlines": "first\nsecond\r\n\ttab",
    "emoji": "🐇 ключ 鍵",
    "quotes": "'; DROP TABLE singleton_leases; --\"%_\\",
    "globs": "*?[a-z]\\*",
    "10 kB": "k" * 10_240,
    "case": "CaSe",
}


class BatchFacts(StoreFixtures):
    def test_a_thousand_leases_go_in_one_call(self, store: LeaseStore, key: str) -> None:
        requests = [LeaseRequest(f"{key}:{number}", "a", LONG) for number in range(1000)]
        answers = store.acquire(requests)
        leases = [answer.lease for answer in answers if isinstance(answer, Granted)]
        assert [lease.key for lease in leases] == [request.key for request in requests]
        assert all(store.renew(leases))
        again = store.acquire([LeaseRequest(lease.key, "b", LONG) for lease in leases])
        assert not any(isinstance(answer, Granted) for answer in again)
        assert all(store.release([Release(lease) for lease in leases]))

    def test_answers_come_in_the_order_of_the_requests(self, store: LeaseStore, key: str) -> None:
        grant(store, f"{key}:1", "x")
        answers = store.acquire([LeaseRequest(f"{key}:{n}", "a", LONG) for n in (2, 1, 0)])
        assert [isinstance(answer, Granted) for answer in answers] == [True, False, True]

    def test_key_asked_for_twice_in_a_batch_is_granted_once(self, store: LeaseStore, key: str) -> None:
        first, second = store.acquire([LeaseRequest(key, owner, LONG) for owner in ("a", "b")])
        assert isinstance(first, Granted)
        assert_held(second, by="a")

    def test_batch_answers_as_its_requests_would_one_by_one(self, store: LeaseStore, key: str) -> None:
        """Hundreds that have little in common: nothing of one may get into another."""
        names = [f"{key}:{number}" for number in range(500)]
        held, done, free = names[::3], names[1::3], names[2::3]
        holders = store.acquire([LeaseRequest(name, f"holder of {name}", LONG) for name in held])
        finished = store.acquire([LeaseRequest(name, "x", LONG) for name in done])
        assert all(
            store.release(
                [
                    Release(answer.lease, position=number, outcome=f"outcome {number}")
                    for number, answer in enumerate(finished)
                    if isinstance(answer, Granted)
                ]
            )
        )
        answers = store.acquire(
            [
                LeaseRequest(name, f"owner of {name}", LONG, position=0, note={"number": number})
                for number, name in enumerate(names)
            ]
        )
        for name, answer in zip(held, answers[::3], strict=True):
            assert_held(answer, by=f"holder of {name}")
        assert answers[1::3] == [Done(number, f"outcome {number}") for number in range(len(done))]
        granted = [answer.lease for answer in answers if isinstance(answer, Granted)]
        assert [lease.key for lease in granted] == free
        records = [record for record in store.peek(names) if record is not None]
        assert [record.key for record in records] == names
        assert [record.owner for record in records[2::3]] == [f"owner of {name}" for name in free]
        assert [record.note for record in records] == [
            {"number": number} if number % 3 == 2 else {} for number in range(len(names))
        ]
        lost = granted[100]
        store.force_release(lost.key, who="tester", why="to see")
        leases = [answer.lease for answer in holders if isinstance(answer, Granted)] + granted
        kept = [lease is not lost for lease in leases]
        assert store.renew(leases) == kept
        assert store.release([Release(lease) for lease in leases]) == kept

    def test_each_lease_of_a_batch_has_its_own_ttl(self, store: LeaseStore, key: str) -> None:
        ttls = [timedelta(minutes=minutes) for minutes in (10, 10, 30, 20, 10)]
        names = [f"{key}:{number}" for number in range(len(ttls))]
        asked = [LeaseRequest(name, "a", ttl) for name, ttl in zip(names, ttls, strict=True)]
        leases = [answer.lease for answer in store.acquire(asked) if isinstance(answer, Granted)]

        def assert_each_has_its_own() -> None:
            for lease, record, ttl in zip(leases, store.peek(names), ttls, strict=True):
                assert record is not None
                for remaining in (lease.remaining, record.remaining):
                    assert ttl * 0.9 < remaining <= ttl

        assert_each_has_its_own()
        assert store.renew(leases) == [True] * len(ttls)
        assert_each_has_its_own()

    def test_key_far_apart_in_a_batch_is_asked_for_in_turn(self, store: LeaseStore, key: str) -> None:
        others = [LeaseRequest(f"{key}:{number}", "x", LONG) for number in range(600)]
        first, *_, again, last = store.acquire(
            [
                LeaseRequest(key, "a", LONG),
                *others,
                LeaseRequest(key, "a", LONG),
                LeaseRequest(key, "b", LONG),
            ]
        )
        assert isinstance(first, Granted)
        assert isinstance(again, Granted)
        assert again.lease.fence == first.lease.fence
        assert_held(last, by="a")

    def test_empty_batch_answers_nothing(self, store: LeaseStore) -> None:
        assert store.acquire([]) == []
        assert store.renew([]) == []
        assert store.release([]) == []
        assert store.peek([]) == []


class MeetingFacts(StoreFixtures):
    def test_members_that_live_are_told_of_each_other(
        self, store: LeaseStore, other_store: LeaseStore
    ) -> None:
        assert store.meet("beat", "a", LONG).members == ("a",)
        assert other_store.meet("beat", "b", LONG).members == ("a", "b")
        assert store.meet("beat", "a", LONG).members == ("a", "b")
        assert store.meet("other", "c", LONG).members == ("c",)

    def test_member_that_leaves_or_dies_is_not_told_of(
        self, store: LeaseStore, pass_time: PassTime
    ) -> None:
        store.meet("beat", "dies", SHORT)
        store.meet("beat", "leaves", LONG)
        store.meet("beat", "leaves", timedelta(0))
        pass_time(SHORT)
        assert store.meet("beat", "a", LONG).members == ("a",)

    def test_meeting_tells_the_stores_time(self, store: LeaseStore) -> None:
        before = store.now()
        assert before <= store.meet("beat", "a", LONG).now <= store.now()
        assert abs((before - datetime.now(UTC)).total_seconds()) < 60

    def test_group_is_no_record(self, store: LeaseStore) -> None:
        store.meet("beat", "a", LONG)
        store.now()
        assert list(store.scan()) == []
        before = store.incarnation
        grant(store, "group:beat", "x")
        assert store.meet("beat", "a", LONG).members == ("a",)
        assert store.incarnation == before


class PeopleFacts(StoreFixtures):
    def test_peek_shows_the_holder_and_its_note(self, store: LeaseStore, key: str) -> None:
        note = {"host": "h", "pid": 7, "task": "report", "run": "🐇 \u0000", "nested": {"a": [1, None]}}
        lease = grant(store, key, "a", note=note)
        [record] = store.peek([key])
        assert record is not None
        assert (record.key, record.owner, record.fence) == (key, "a", lease.fence)
        assert record.state is RecordState.HELD
        assert record.note == note
        assert record.until is not None
        assert record.until - record.since == LONG
        assert abs(record.since - store.now()).total_seconds() < 30

    def test_peek_tells_held_from_expired_from_free(
        self, store: LeaseStore, key: str, pass_time: PassTime
    ) -> None:
        lease = grant(store, key, "a", SHORT)
        pass_time(SHORT)
        [expired] = store.peek([key])
        store.release([Release(lease)])
        [free] = store.peek([key])
        assert expired is not None
        assert expired.state is RecordState.EXPIRED
        assert free is not None
        assert free.state is RecordState.FREE

    def test_peek_of_an_unknown_key_is_none(self, store: LeaseStore, key: str) -> None:
        grant(store, key, "a")
        assert [record is None for record in store.peek(["unknown", key])] == [True, False]

    def test_note_may_hold_a_whole_message(self, store: LeaseStore, key: str) -> None:
        note = {"message": "é" * 64_000}
        grant(store, key, "a", note=note)
        [record] = store.peek([key])
        assert record is not None
        assert record.note == note

    def test_scan_finds_each_record_once_by_its_prefix(self, store: LeaseStore) -> None:
        wanted = {f"Run:{number}" for number in range(1200)}
        others = ["run:small", "R", "Rum:1", "Run_1"]
        store.acquire([LeaseRequest(name, "a", LONG) for name in [*wanted, *others]])
        store.now()
        found = [record.key for record in store.scan("Run:")]
        assert sorted(found) == sorted(wanted)
        assert {record.key for record in store.scan()} == wanted.union(others)

    def test_force_takes_the_lease_and_tells_who_and_why(self, store: LeaseStore, key: str) -> None:
        lease = grant(store, key, "a")
        taken = store.force_release(key, who="ops@host", why="host is gone")
        assert taken is not None
        assert (taken.owner, taken.fence, taken.state) == ("a", lease.fence, RecordState.HELD)
        [record] = store.peek([key])
        assert record is not None
        assert record.state is RecordState.FREE
        assert record.note["forced_by"] == "ops@host"
        assert record.note["reason"] == "host is gone"
        assert record.note["holder"] == "a"

    def test_holder_that_was_forced_out_can_neither_renew_nor_finish(
        self, store: LeaseStore, key: str
    ) -> None:
        lease = grant(store, key, "a", position=1)
        store.force_release(key, who="tester", why="to see")
        assert store.renew([lease]) == [False]
        assert store.release([Release(lease, position=1)]) == [False]
        assert isinstance(ask(store, key, "b", position=1), Granted)

    def test_force_finds_nothing_where_nothing_is_held(self, store: LeaseStore, key: str) -> None:
        assert store.force_release(key, who="tester", why="to see") is None
        store.release([Release(grant(store, key, "a"))])
        assert store.force_release(key, who="tester", why="to see") is None

    @pytest.mark.parametrize("name", AWKWARD_KEYS)
    def test_awkward_keys_are_kept_as_they_are(self, store: LeaseStore, name: str) -> None:
        key = AWKWARD_KEYS[name]
        lease = grant(store, key, "a")
        assert_held(ask(store, key, "b"), by="a")
        grant(store, key + "'", "c")
        if key.swapcase() != key:
            grant(store, key.swapcase(), "d")
        assert store.renew([lease]) == [True]
        assert key in {record.key for record in store.scan(key[:3])}
        assert store.release([Release(lease)]) == [True]
