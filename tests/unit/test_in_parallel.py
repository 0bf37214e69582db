"""Tests that share a server stay together, and all kinds of tests are spread over the run."""

from __future__ import annotations

from itertools import groupby

import pytest

from tests.in_parallel import in_turn, unit_of


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/unit/test_a.py::test_it", "tests/unit/test_a.py"),
        ("tests/unit/test_a.py::test_it[a::b/c]", "tests/unit/test_a.py"),
        ("tests/contract/test_a.py::TestStore::test_it[x]", "tests/contract/test_a.py::TestStore"),
        ("tests/end_to_end/test_a.py::test_it[x]", "tests/end_to_end/test_a.py::test_it[x]"),
    ],
)
def test_modules_and_classes_stay_together_and_tests_from_end_to_end_do_not(
    nodeid: str, unit: str
) -> None:
    assert unit_of(nodeid) == unit


def test_each_test_has_its_turn_and_no_kind_is_left_to_the_end() -> None:
    slow = [f"tests/end_to_end/test_a.py::test_it[{n}]" for n in range(20)]
    quick = [f"tests/unit/test_{n}.py::test_it" for n in range(200)]
    nodeids = slow + quick
    turns = in_turn(nodeids)
    assert sorted(turns) == list(range(220))
    ordered = [nodeids[place] for place in turns]
    assert [each for each in ordered if each in quick] == quick
    in_a_row = [len(list(some)) for _, some in groupby(ordered, key=lambda each: each in quick)]
    assert max(in_a_row) < 20
    assert ordered[-1] in slow
