"""Measure all that is promised, say which promises were kept, and write it down."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from celery_singleton_lock.testing.servers import RedisServer, ServerMissing

from . import beat, leases, ledger, outbox, redlock, worker
from .chapters import Chapter, Pace
from .command import run
from .verdict import Verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 if something is worse than it is known to be: a quick run is too short to say so."""
    try:
        pace, told = run("python -m benchmarks", __doc__, chapters, arguments)
    except ServerMissing as missing:
        print(f"nothing was measured: {missing}", file=sys.stderr)
        return 2
    verdict = Verdict.of(result for chapter in told for result in chapter.results)
    print(verdict)
    return 0 if pace == "quick" or verdict.is_as_known else 1


def chapters(pace: Pace) -> Iterator[Chapter]:
    with RedisServer() as server:
        yield from leases.chapters(server, pace)
    yield from redlock.chapters(pace)
    yield from beat.chapters(pace)
    yield from worker.chapters(pace)
    yield from ledger.chapters(pace)
    yield from outbox.chapters(pace)


if __name__ == "__main__":
    sys.exit(main())
