"""``python -m tests.chaos.mutation [name ...]``, or ``make mutants``: each mutant lives in a world of
its own, and must be caught by a promise that it breaks. Ends with 1 if one is not."""

from __future__ import annotations

import shutil
import sys

from .mutants import ALL, Mutant
from .trial import Trial, run_trial
from .world import new_place

SEED = 7
SECONDS = 25.0
TRIES = 3
"""A mutant does harm only when a fault meets it: what one plan misses, the next may not."""


def main(names: list[str]) -> int:
    survivors = [name for name in names or ALL if not is_caught(ALL[name])]
    print(f"survived: {', '.join(survivors)}" if survivors else "all are caught")
    return 1 if survivors else 0


def is_caught(mutant: Mutant) -> bool:
    for seed in range(SEED, SEED + TRIES):
        trial = _live(mutant, seed)
        by = sorted({each.promise for each in trial.violations} & mutant.promises)
        told = f"caught by: {', '.join(by)}" if by else "not caught"
        print(f"{mutant.name} ({mutant.story}), seed {seed}: {told}", flush=True)
        if by:
            first = next(each for each in trial.violations if each.promise in by)
            print(f"    {first}", flush=True)
            return True
    return False


def _live(mutant: Mutant, seed: int) -> Trial:
    place = new_place()
    try:
        return run_trial(
            place,
            "redis",
            seed,
            SECONDS,
            faults=mutant.plan(seed, SECONDS),
            environment={"CHAOS_MUTANT": mutant.name, **mutant.environment},
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
