"""Play every scene with every subject, print a table, and write it down."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from .scenes import Scene, beat_is_killed, job_outlives_its_lock, redis_is_away, worker_is_killed
from .subjects import BEATS, LOCKS, Subject

SCENES: Final[Sequence[tuple[Scene, Sequence[Subject]]]] = (
    (beat_is_killed, BEATS),
    (redis_is_away, BEATS),
    (worker_is_killed, LOCKS),
    (job_outlives_its_lock, LOCKS),
)


PACKAGES: Final = (
    "celery", "kombu", "redis", "celery-redbeat", "celery-singleton", "celery-once", "celery-heimdall",
)  # fmt: skip


def is_there(package: str) -> bool:
    return any(each.metadata["Name"] == package for each in metadata.distributions())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.neighbours", description=__doc__)
    names = [scene.__name__ for scene, _ in SCENES]
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"only these: {', '.join(names)}")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    for scene, subjects in SCENES:
        if options.scenes and scene.__name__ not in options.scenes:
            continue
        print(f"\n{inspect.getdoc(scene)}")
        for subject in subjects:
            if not subject.is_installed:
                print(f"  {subject.name}: not installed; see the extra `neighbours`")
                continue
            row = dict(scene(subject))
            results.append({"scene": scene.__name__, "subject": subject.name, **row})
            told = ", ".join(f"{name}: {value}" for name, value in row.items())
            print(f"  {subject.name:24} {told}", flush=True)
    if options.json:
        versions = {name: metadata.version(name) for name in PACKAGES if is_there(name)}
        options.json.write_text(json.dumps({"versions": versions, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
