"""Measure how cost grows, and write it down."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from benchmarks.command import parse
from benchmarks.environment import environment, in_a_line, stay_on_one_core
from benchmarks.results import write

from .plots import plots


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse("python -m benchmarks.growth", __doc__, arguments)
    began = time.monotonic()
    stay_on_one_core()
    known = environment(options.pace)
    print(in_a_line(known))
    drawn = [plot.draw() for plot in plots(options.pace)]
    seconds = round(time.monotonic() - began)
    if options.json:
        write(options.json, known | {"seconds": seconds}, plots=drawn)
    print(f"\n{seconds} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
