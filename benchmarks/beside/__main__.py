"""Measure ours beside the others, and write it down."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.chapters import Chapter, Pace
from benchmarks.command import run

from . import beats, locks, tasks


def chapters(pace: Pace) -> Iterator[Chapter]:
    yield from locks.chapters(pace)
    yield from tasks.chapters(pace)
    yield from beats.chapters(pace)


if __name__ == "__main__":
    run("python -m benchmarks.beside", __doc__, chapters)
    sys.exit(0)
