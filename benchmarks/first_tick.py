"""Starting with a large schedule: the first tick of beat beside stock beat's, each in a process."""

from __future__ import annotations

from collections.abc import Iterator

from . import promises, schedulers
from .measure import Answer, answer, promised
from .promises import Promise, Unit
from .schedulers import Figures, Kind

KINDS: tuple[Kind, ...] = ("ours", "stock")


def first_ticks(entries: int, rounds: int) -> Iterator[Answer]:
    """Each round against an empty store and without a schedule file: nothing is known yet."""
    samples: dict[Kind, list[Figures]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind, figures in samples.items():
            figures.append(schedulers.first_tick(kind, entries))
    questions: tuple[tuple[Promise, Unit], ...] = (
        (promises.FIRST_TICK, "seconds"),
        (promises.FIRST_TICK_MEMORY, "bytes"),
    )
    for promise, unit in questions:
        values: dict[str, list[float]] = {
            kind: [each[unit] for each in figures] for kind, figures in samples.items()
        }
        yield answer(promised(promise, "ours", "stock"), values, unit)
