"""``python -m tests.chaos.soak --minutes 10 --seed 1 --store redis``, or ``make soak``: trials, each
from a seed of its own. Ends with 1 if a promise was broken, and names the seed."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections import Counter
from pathlib import Path

from .faults import STORES
from .report import commit_of_this, write_report
from .trial import Trial, run_trial
from .world import new_place

TRIAL_S = 60.0
MOST_TOLD = 10


def main() -> int:
    asked = _arguments()
    seed = asked.seed if asked.seed is not None else int(time.time())
    until = time.monotonic() + asked.minutes * 60
    stores = STORES if asked.store == "all" else (asked.store,)
    print(f"commit {commit_of_this()}", flush=True)
    broken = 0
    total: Counter[str] = Counter()
    while True:
        for store in stores:
            place = new_place()
            print(f"{store}, broker {asked.broker}, seed {seed}: ", end="", flush=True)
            trial = run_trial(place, store, seed, asked.seconds, broker=asked.broker, pool=asked.pool)
            _tell(trial, place, asked.reports)
            broken += bool(trial.violations)
            total.update({"trials": 1, **trial.counts()})
        seed += 1
        if time.monotonic() >= until:
            break
    print("in all: " + ", ".join(f"{count} {what}" for what, count in total.items()))
    return 1 if broken else 0


def _tell(trial: Trial, place: Path, reports: Path) -> None:
    print(", ".join(f"{count} {what}" for what, count in trial.counts().items()), flush=True)
    report = reports / f"{trial.store}-{trial.broker}-{trial.seed}.html"
    write_report(trial, report)
    if not trial.violations:
        shutil.rmtree(place, ignore_errors=True)
        return
    for violation in trial.violations[:MOST_TOLD]:
        print(f"  VIOLATION {violation}", flush=True)
    again = f"make soak STORE={trial.store} BROKER={trial.broker} SEED={trial.seed} MINUTES=0"
    print(f"  report: {report}\n  journal and logs: {place}\n  again: {again}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5, help="0: one trial")
    parser.add_argument("--seed", type=int, help="of the first trial; the next has the next number")
    parser.add_argument("--store", choices=[*STORES, "all"], default="redis")
    parser.add_argument("--broker", choices=["redis", "rabbitmq"], default="redis")
    parser.add_argument("--pool", choices=["prefork", "threads"], default="prefork")
    parser.add_argument("--seconds", type=float, default=TRIAL_S, help="of faults in one trial")
    parser.add_argument("--reports", type=Path, default=Path("soak-reports"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
