"""What fifty replicas do in virtual time. `make bench` runs the same with 10,000 entries."""

from __future__ import annotations

import pytest

from benchmarks.simulation import simulate


@pytest.mark.parametrize("killed", [0, 3])
def test_fifty_replicas_claim_a_slot_hardly_more_than_once(killed: int) -> None:
    outcome = simulate(replicas=50, entries=200, slots_each=4, killed=killed)
    assert outcome.published == outcome.slots == 800
    assert outcome.copies == 0
    assert outcome.claims_a_slot <= 1.2
