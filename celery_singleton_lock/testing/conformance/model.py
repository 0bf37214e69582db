"""A store driven at random beside a model of it, written without looking at the store's rules."""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.core.models import Done, Granted, Held, Lease, LeaseRequest, Park, Release
from celery_singleton_lock.leases import LeaseStore

from .fixtures import LONG, OpenStore, StoreFixtures

BRIEF = timedelta(milliseconds=40)

keys = st.sampled_from(["one", "two"])
owners = st.sampled_from(["ann", "bob"])
heirs = st.sampled_from([None, "run 1", "run 2"])
positions = st.sampled_from([None, 1, 2, 3])


@dataclass
class Expected:
    """What the model believes of one key. `holder` may be dead: then `is_alive` is False."""

    holder: Lease | None = None
    is_alive: bool = False
    last_owner: str = ""
    fence: int = 0
    deaths: int = 0
    position: int = -1
    outcome: str | None = None
    is_parked: bool = False
    heir: str | None = None
    spent: list[Lease] = field(default_factory=list)
    """Leases that were lost, and whose holders do not know it."""


def machine_for(open_again: OpenStore) -> type[RuleBasedStateMachine]:
    class StoreBesideModel(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.store: LeaseStore = open_again()
            self.salt = uuid.uuid4().hex[:8]
            self.expected: dict[str, Expected] = {}

        def teardown(self) -> None:
            self.store.close()

        def of(self, key: str) -> Expected:
            return self.expected.setdefault(key, Expected())

        def name(self, key: str) -> str:
            return f"{self.salt}:{key}"

        @rule(key=keys, owner=owners, heir=heirs, position=positions, dies=st.booleans())
        def acquire(
            self, key: str, owner: str, heir: str | None, position: int | None, dies: bool
        ) -> None:
            expected = self.of(key)
            ttl = BRIEF if dies else LONG
            request = LeaseRequest(self.name(key), owner, ttl, heir=heir, position=position)
            try:
                [answer] = self.store.acquire([request])
            except StoreUnavailable:
                # On a busy machine the answer may take longer than so brief a lease.
                self.granted_too_late(expected, owner, heir, position)
                return
            if position is not None and position <= expected.position:
                assert answer == Done(expected.position, expected.outcome)
            elif expected.is_alive and expected.last_owner == owner:
                assert isinstance(answer, Granted)
                assert answer.again
                assert answer.lease.fence == expected.fence
            elif expected.is_alive:
                assert isinstance(answer, Held)
                assert answer.by == expected.last_owner
            elif expected.is_parked and (heir is None or heir != expected.heir):
                assert isinstance(answer, Held)
                assert answer.by == (expected.heir or expected.last_owner)
            else:
                self.granted(expected, owner, answer, dies)

        def granted_too_late(
            self, expected: Expected, owner: str, heir: str | None, position: int | None
        ) -> None:
            """Only a grant can be late; it was undone."""
            assert position is None or position > expected.position
            if expected.is_alive:
                assert expected.last_owner == owner
                return
            assert not expected.is_parked or heir == expected.heir
            if expected.holder is not None:
                expected.deaths += expected.last_owner != owner
                expected.spent.append(expected.holder)
            expected.holder, expected.last_owner = None, owner

        def granted(self, expected: Expected, owner: str, answer: Any, dies: bool) -> None:
            assert isinstance(answer, Granted), answer
            assert not answer.again
            assert answer.lease.fence > expected.fence
            if expected.holder is not None and expected.last_owner != owner:
                expected.deaths += 1
            assert answer.takeovers == expected.deaths
            if expected.holder is not None:
                expected.spent.append(expected.holder)
            expected.holder, expected.is_alive = answer.lease, not dies
            expected.last_owner, expected.fence = owner, answer.lease.fence
            if dies:
                time.sleep(BRIEF.total_seconds() * 1.5)

        @rule(key=keys)
        def renew(self, key: str) -> None:
            expected = self.of(key)
            if expected.holder is not None:
                assert self.store.renew([expected.holder]) == [expected.is_alive]

        @rule(key=keys)
        def lost_lease_is_of_no_use(self, key: str) -> None:
            expected = self.of(key)
            if expected.spent:
                lost = expected.spent.pop()
                lost.extend(float("inf"))  # a holder that slept
                assert self.store.renew([lost]) == [False]
                assert self.store.release([Release(lost, position=3)]) == [False]

        @rule(key=keys, position=positions, heir=heirs, parks=st.booleans())
        def release(self, key: str, position: int | None, heir: str | None, parks: bool) -> None:
            expected = self.of(key)
            if expected.holder is None:
                return
            outcome = None if position is None else f"outcome {position}"
            park = Park(heir, LONG) if parks else None
            release = Release(expected.holder, position=position, outcome=outcome, park=park)
            assert self.store.release([release]) == [True]
            expected.holder, expected.is_alive, expected.deaths = None, False, 0
            expected.is_parked, expected.heir = parks, heir if parks else None
            if position is not None and position >= expected.position:
                expected.position, expected.outcome = position, outcome

        @rule(key=keys)
        def undo(self, key: str) -> None:
            expected = self.of(key)
            if expected.holder is not None:
                self.store.undo([Granted(expected.holder)])
                expected.holder, expected.is_alive = None, False

        @rule(key=keys)
        def reclaim(self, key: str) -> None:
            expected = self.of(key)
            if expected.holder is None or expected.is_alive:
                return
            request = LeaseRequest(self.name(key), expected.last_owner, LONG, reclaim=expected.fence)
            [answer] = self.store.acquire([request])
            self.granted(expected, expected.last_owner, answer, dies=False)

        @rule(key=keys)
        def force(self, key: str) -> None:
            expected = self.of(key)
            taken = self.store.force_release(self.name(key), who="model", why="at random")
            assert (taken is not None) == (expected.holder is not None or expected.is_parked)
            if taken is not None:
                if expected.holder is not None:
                    expected.spent.append(expected.holder)
                expected.holder, expected.is_alive = None, False
                expected.is_parked, expected.heir = False, None

    return StoreBesideModel


class ModelFacts(StoreFixtures):
    model_steps = settings(
        max_examples=25,
        stateful_step_count=30,
        deadline=None,
        derandomize=False,
        suppress_health_check=list(HealthCheck),
        database=None,
        print_blob=True,
    )

    @pytest.mark.timeout(300)
    def test_store_does_what_the_model_does(self, open_again: OpenStore) -> None:
        run_state_machine_as_test(machine_for(open_again), settings=self.model_steps)
