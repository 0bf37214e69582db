"""The plan of the nemesis."""

from __future__ import annotations

from itertools import pairwise

import pytest

from .faults import BEATS, STORES, StoreKind, menu, plan


@pytest.mark.parametrize("store", STORES)
def test_a_seed_has_one_plan(store: StoreKind) -> None:
    assert plan(1, 120, menu(store)) == plan(1, 120, menu(store))
    assert plan(1, 120, menu(store)) != plan(2, 120, menu(store))


@pytest.mark.parametrize("store", STORES)
def test_every_kind_of_fault_is_played_sooner_or_later(store: StoreKind) -> None:
    played = {(fault.what, fault.target.partition(">")[2]) for fault in plan(1, 1500, menu(store))}
    asked = {(kind.what, target.partition(">")[2]) for kind in menu(store) for target in kind.targets}
    assert played == asked


@pytest.mark.parametrize("seed", range(20))
def test_one_beat_is_always_left_alone(seed: int) -> None:
    hurt = sorted(
        (fault.at, fault.at + fault.lasts)
        for fault in plan(seed, 200, menu("redis"))
        if fault.target in BEATS
    )
    assert all(end < begin for (_, end), (begin, _) in pairwise(hurt))
