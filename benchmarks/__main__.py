"""Measure everything, say which promises were kept, and write it down."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import celery_singleton_lock
from celery_singleton_lock.testing.servers import RedisServer, ServerMissing

from . import beat, leases, ledger, outbox, redlock, worker
from .leases import NotMeasured
from .measure import Answer
from .table import HEADING, row_of


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 if a promise was missed in a full run: a quick one is too short to say so."""
    options = parse(arguments)
    began = time.monotonic()
    stay_on_one_core()
    try:
        with RedisServer() as server:
            environment = describe(server, options.quick)
            print(" · ".join(f"{name} {value}" for name, value in environment.items()))
            answers = list(measured(server, options.quick))
    except ServerMissing as missing:
        print(f"nothing was measured: {missing}", file=sys.stderr)
        return 2
    missed = [answer.question.name for answer in answers if not answer.is_kept]
    print(f"\n{verdict(missed)} ({time.monotonic() - began:.0f} s)")
    if options.json:
        write(options.json, environment, answers)
    return 1 if missed and not options.quick else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a minute; misses do not count")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the results there")
    return parser.parse_args(arguments)


def stay_on_one_core() -> None:
    """With the servers started from here, where the system knows how.

    Otherwise every reply may have to wake another core. That takes longer than a lease, and is in
    both sides of a ratio: on an idle machine all ratios would look better than they are.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def describe(server: RedisServer, is_quick: bool) -> dict[str, Any]:
    """What else the figures depend on."""
    with server.connect() as client:
        info: Any = client.info("server")
    return {
        "celery-singleton-lock": celery_singleton_lock.__version__,
        "python": platform.python_version(),
        "redis-py": metadata.version("redis"),
        "hiredis": version_or_none("hiredis"),
        "valkey": info["valkey_version"],
        "system": platform.platform(terse=True),
        "cores": os.cpu_count(),
        "cores used": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "run": "quick" if is_quick else "full",
    }


def version_or_none(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def measured(server: RedisServer, is_quick: bool) -> Iterator[Answer]:
    print("medians, with the quartiles in brackets; a ratio is of samples of the same round\n")
    print(HEADING)
    effort = leases.QUICK if is_quick else leases.FULL
    of_leases = (*leases.chapters(server, effort), *redlock.chapters(effort))
    of_beat = beat.chapters(beat.QUICK if is_quick else beat.FULL)
    of_workers = worker.chapters(worker.QUICK if is_quick else worker.FULL)
    of_outbox = outbox.chapters(outbox.QUICK if is_quick else outbox.FULL)
    of_ledger = ledger.chapters(ledger.QUICK if is_quick else ledger.FULL)
    for title, results in (*of_leases, *of_beat, *of_workers, *of_ledger, *of_outbox):
        print(f"\n{title}")
        for result in results:
            if isinstance(result, NotMeasured):
                print(f"  {result.name}: not measured, {result.reason}")
            else:
                print(row_of(result), flush=True)
                yield result


def verdict(missed: Sequence[str]) -> str:
    if not missed:
        return "Every promise was kept."
    return "MISSED: " + "; ".join(missed) + "."


def write(path: Path, environment: dict[str, Any], answers: Sequence[Answer]) -> None:
    results = [asdict(answer) | {"is_kept": answer.is_kept} for answer in answers]
    text = json.dumps({"environment": environment, "results": results}, indent=2)
    path.write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
