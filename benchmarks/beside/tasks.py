"""Tasks of which one runs at a time: what a worker and a client pay for them, to plain Celery."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.chapters import Chapter, NotMeasured, Pace
from benchmarks.environment import version_of
from benchmarks.measure import Answer, Subject
from benchmarks.worker import NOTHING_MORE, POOLS, Caller, Effort, bench_app, drain, fill
from celery_singleton_lock.testing.servers import RedisServer

from .turns import absent, in_turns

PLAIN: Final = "plain Celery"
OTHERS: Final[Mapping[str, str]] = {
    "celery-singleton": """
        from celery_singleton import Singleton

        app.conf.singleton_backend_url = os.environ["LOCKS"]
        app.task(name="celery-singleton", base=Singleton, **late, **own)(noop)
    """,
    "celery-once": """
        from celery_once import QueueOnce

        settings = {"url": os.environ["LOCKS"], "default_timeout": 3600}
        app.conf.ONCE = {"backend": "celery_once.backends.Redis", "settings": settings}
        app.task(name="celery-once", base=QueueOnce, **late, **own)(noop)
    """,
    "celery-heimdall": """
        import redis
        from celery_heimdall import HeimdallTask

        class Unique(HeimdallTask):
            # By default its locks are on the server of the results: all others have one of their own.
            abstract = True

            def setup_redis(self):
                return redis.Redis.from_url(os.environ["LOCKS"])

        unique, own = {"base": Unique, **late}, {"shared": False}
        app.task(name="celery-heimdall", heimdall={"unique": True}, **unique, **own)(noop)
        at_once = {"unique": True, "unique_lock_blocking": False}
        app.task(name="at once", heimdall=at_once, **unique, **own)(noop)
    """,
}
"""What their users write. Each has an app of its own: settings of celery-singleton begin as ours do,
and are refused by us."""


EFFORTS: Final[Mapping[Pace, Effort]] = {
    "quick": Effort(tasks=50, rounds=1, calls=5, call_rounds=2),
    "usual": Effort(tasks=1_000, rounds=2, calls=100, call_rounds=10),
    "full": Effort(tasks=2_000, rounds=3, calls=100, call_rounds=40),
}


def chapters(pace: Pace) -> Iterator[Chapter]:
    effort = EFFORTS[pace]
    # The same servers for all of it: some of the others keep to the first that they met.
    with RedisServer() as broker, RedisServer() as locks, ExitStack() as stack:
        apps = Apps(stack, broker, locks)
        for pool in POOLS:
            yield (
                f"tasks: {effort.tasks:,} that do nothing, {pool}, to {PLAIN}; times are of one task",
                drained(effort, apps, pool),
            )
        yield f"tasks: apply_async, to {PLAIN}; times are of one call", called(effort, apps)


@dataclass(frozen=True, slots=True)
class Kind:
    place: Path
    app: Any
    task: str
    fewer: int | None = None
    """Measure so many only: it is too slow for more."""


class Apps:
    """Of each that is installed."""

    def __init__(self, stack: ExitStack, broker: RedisServer, locks: RedisServer) -> None:
        self.broker = broker
        place, app = stack.enter_context(bench_app(broker, locks))
        self.joined = Kind(place, app, "joined")
        plain = stack.enter_context(bench_app(broker, locks, NOTHING_MORE))
        self.kinds = {PLAIN: Kind(*plain, "plain"), "ours": Kind(place, app, "ours")}
        for name, program in OTHERS.items():
            if version_of(name):
                place, app = stack.enter_context(bench_app(broker, locks, program))
                self.kinds[name] = Kind(place, app, name)
        if heimdall := self.kinds.pop("celery-heimdall", None):
            # Its worker waits for a second for the lock that its client took for the same task.
            self.kinds["celery-heimdall, by default"] = replace(heimdall, fewer=3)
            self.kinds["celery-heimdall, unique_lock_blocking off"] = replace(heimdall, task="at once")


def drained(effort: Effort, apps: Apps, pool: str) -> Iterator[Answer | NotMeasured]:
    def sample(kind: Kind) -> float:
        count = kind.fewer or effort.tasks
        return drain(apps.broker, kind.place, fill(kind.app, kind.task, count), pool, count)

    subjects = {name: partial(sample, kind) for name, kind in apps.kinds.items()}
    yield from in_turns(subjects, effort.rounds, against=PLAIN)
    yield from absent(OTHERS)


def called(effort: Effort, apps: Apps) -> Iterator[Answer | NotMeasured]:
    """Nobody consumes, so that nobody else is at work."""
    subjects = {
        name: Subject(Caller(kind.app, kind.task), effort.calls).cost
        for name, kind in (apps.kinds | {"ours, with on_duplicate": apps.joined}).items()
    }
    yield from in_turns(subjects, effort.call_rounds, against=PLAIN, warm_up=True)
    yield from absent(OTHERS)
