"""How the tests are shared out to the processes of a parallel run."""

from __future__ import annotations

from collections import defaultdict

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

ONE_BY_ONE = ("tests/end_to_end", "tests/chaos")
"""What starts processes of its own for each test, and takes longest."""
_BEGUN_BY = 0.7
"""Of the run: when the last module begins, lest it is what all wait for in the end."""


class ByModule(LoadGroupScheduling):  # type: ignore[misc] # xdist has no types
    """A process gets a whole module, or class of one, so that servers which a module starts for itself
    are started once and not by each process. A mark ``xdist_group`` goes first."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        # They come in the order in which they are to begin.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        group = super()._split_scope(nodeid)
        return group if group != nodeid else unit_of(nodeid)


def unit_of(nodeid: str) -> str:
    """What is not divided among processes."""
    if nodeid.startswith(ONE_BY_ONE):
        return nodeid
    return nodeid.partition("[")[0].rpartition("::")[0]


def in_turn(nodeids: list[str]) -> list[int]:
    """The places of these in the order in which they are to begin.

    Some kinds of tests wait most of their time, and others compute. Were one kind to follow the other,
    the machine would be idle first, and too busy then: so all kinds are spread over the whole run.
    """
    kinds: dict[str, list[int]] = defaultdict(list)
    for place, nodeid in enumerate(nodeids):
        kinds["/".join(nodeid.split("/")[:2])].append(place)
    begins = {
        place: number / len(places) * (1 if kind in ONE_BY_ONE else _BEGUN_BY)
        for kind, places in kinds.items()
        for number, place in enumerate(places)
    }
    return sorted(begins, key=lambda place: begins[place])
