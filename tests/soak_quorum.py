"""Millions of schedules of the quorum: ``python -m tests.soak_quorum [schedules [first seed]]``, or
``make soak-quorum``. Ends with 1 at the first violation, and names its seed."""

from __future__ import annotations

import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor

from tests.unit.quorum_world import Violation, World, first_violation

SHARE = 20_000


def run(first: int) -> str | None:
    violation: Violation | None = first_violation(World, range(first, first + SHARE))
    return None if violation is None else str(violation)


def main(schedules: int, first: int) -> int:
    print(f"{schedules:,} schedules from seed {first}", flush=True)
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for done, violation in enumerate(pool.map(run, range(first, first + schedules, SHARE)), 1):
            if violation:
                print(violation)
                pool.shutdown(cancel_futures=True)
                return 1
            print(f"{done * SHARE:,} in {time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(main(*(given + [5_000_000, int(time.time())][len(given) :])))
