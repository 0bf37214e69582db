"""The product, broken on purpose: each of these must be caught, or the checker is worth nothing.

Applied in the replicas of a world, when the application is loaded and ``CHAOS_MUTANT`` names one. Where
a wrong order has a window in which something must happen to do harm, the window is made wider.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from .faults import BEATS, BROKER, WORKERS, Fault, Kind, plan

_STOP_WORKERS: Final = (Kind("stop", WORKERS, (3.5, 5.5)),)
_KILL_WORKERS: Final = (Kind("kill", WORKERS, (0.2, 1.5)),)
_HURT_BEATS: Final = (
    Kind("kill", BEATS, (0.2, 1)),
    *(kind for kind in BROKER if kind.what in ("kill", "refuse", "blackhole")),
)


@dataclass(frozen=True)
class Mutant:
    name: str
    story: str
    break_it: Callable[[], None]
    kinds: Sequence[Kind]
    """What it takes to see the harm."""
    promises: frozenset[str]
    """The promises of which at least one is to be found broken."""
    environment: Mapping[str, str] = field(default_factory=dict)

    def plan(self, seed: int, seconds: float) -> list[Fault]:
        return plan(seed, seconds, self.kinds) if self.kinds else []


def _lost_goes_on() -> None:
    from celery_singleton_lock.worker.execution import Execution

    Execution.has_lost_its_run = lambda self: False  # type: ignore[method-assign]


def _one_fence() -> None:
    from celery_singleton_lock.worker.current_run import Run

    Run.fence = property(lambda self: 1)  # type: ignore[method-assign,assignment]


def _no_done_marker() -> None:
    from celery_singleton_lock.core.models import Release
    from celery_singleton_lock.worker.execution import Execution

    def finish(self: Any, outcome: str, *position: int) -> bool:
        return bool(self._end(lambda leases: [Release(lease) for lease in leases.all]))

    Execution.finish = finish  # type: ignore[method-assign,assignment]


def _advance_first() -> None:
    from celery_singleton_lock.beat.dispatch import Dispatch
    from celery_singleton_lock.beat.entries import BrokerUnavailable

    def do(self: Any, claims: Any) -> None:
        for claim in claims:
            claim.entry.position = claim.plan.position
        # As stock beat does: whatever happens, the schedule goes on.
        with suppress(BrokerUnavailable):
            self._publish_all(claims)
        self._advance(claims)

    Dispatch._do = do  # type: ignore[method-assign]


def _record_first() -> None:
    from celery_singleton_lock.beat.dispatch import Dispatch

    def do(self: Any, claims: Any) -> None:
        if claims:
            leases = [(claim.granted.lease, claim.granted.lease.ensure_held) for claim in claims]
            self._advance(claims)
            time.sleep(0.2)
            for lease, _ in leases:
                lease._released = False
            self._publish_all(claims)

    Dispatch._do = do  # type: ignore[method-assign]


def _release_anybodys() -> None:
    import hashlib

    from celery_singleton_lock.leases.redis import scripts

    source = scripts.RELEASE.source.replace(b"record[1] == owner and record[2] == fence", b"true")
    assert source != scripts.RELEASE.source
    # Frozen, and imported by name: changed in place.
    object.__setattr__(scripts.RELEASE, "source", source)
    object.__setattr__(scripts.RELEASE, "sha", hashlib.sha1(source).hexdigest().encode())


def _renew_anyway() -> None:
    from celery_singleton_lock.worker.keep_alive import KeepAlive

    def believe(self: Any, guards: Any) -> None:
        for guard in guards:
            self._regain(guard, _Extended(guard.lease, self._clock()))

    KeepAlive._reclaim = believe  # type: ignore[method-assign]


class _Extended:
    def __init__(self, lease: Any, now: float) -> None:
        self.key, self.fence = lease.key, lease.fence
        self.deadline = now + lease.ttl.total_seconds()


def _no_takeover() -> None:
    from celery_singleton_lock.core.models import Granted
    from celery_singleton_lock.worker import execution, run

    judge = run.judge

    def timid(ask: Any, answers: Any) -> Any:
        first = answers[0]
        if isinstance(first, Granted) and first.takeovers:
            return run.Keep("held", "the dead", timedelta(seconds=1))
        return judge(ask, answers)

    execution.judge = timid  # type: ignore[attr-defined]


def _no_reaper() -> None:
    from celery_singleton_lock.beat.reaper import Reaper

    Reaper.reap = lambda self: None  # type: ignore[method-assign]


def _acknowledge_first() -> None:
    from celery.worker.request import Request

    from celery_singleton_lock.worker.request import SingletonRequest

    def acknowledge(self: Any) -> None:
        if not self._is_cancelled and not self.acknowledged:
            Request.acknowledge(self)
            timer = self.task.singleton_consumer.timer
            timer.call_after(2.5, lambda: self._is_free_to_go(lambda: None))

    SingletonRequest.acknowledge = acknowledge  # type: ignore[method-assign]


def _no_claim() -> None:
    from celery_singleton_lock.beat.dispatch import Dispatch
    from celery_singleton_lock.beat.membership import Company
    from celery_singleton_lock.core.models import Granted, Lease

    claim_and_do = Dispatch._claim_and_do

    def take(self: Any, looks: Any) -> None:
        store = self._store
        acquire = store.acquire

        def grant(requests: Any) -> Any:
            return [
                answer
                if isinstance(answer, Granted)
                else Granted(Lease(request, 1, store._clock() + 10, store._clock))
                for request, answer in zip(requests, acquire(requests), strict=True)
            ]

        store.acquire = grant
        try:
            claim_and_do(self, looks)
        finally:
            del store.acquire

    Dispatch._claim_and_do = take  # type: ignore[method-assign]
    # Both at once: otherwise the second sees what the first has done.
    Company.place_for = lambda self, name: 0  # type: ignore[method-assign]


ALL: Final = {
    each.name: each
    for each in (
        Mutant(
            "lost-goes-on", "after its body an execution does not ask whether its lease is gone",
            _lost_goes_on, _STOP_WORKERS, frozenset({"a run ends once"}),
        ),
        Mutant(
            "one-fence", "the fence does not grow",
            _one_fence, _STOP_WORKERS, frozenset({"fences grow"}),
        ),
        Mutant(
            "no-done-marker", "the end of a run is not recorded",
            _no_done_marker, (Kind("behead", WORKERS, (0.5, 2)),),
            frozenset({"a finished run does not start again"}),
        ),
        Mutant(
            "advance-first", "the schedule goes on before the broker has the message",
            _advance_first, _HURT_BEATS, frozenset({"no slot is lost"}),
        ),
        Mutant(
            "record-first", "a slot is recorded as done, and then published",
            _record_first, _HURT_BEATS, frozenset({"no slot is lost", "published before recorded"}),
        ),
        Mutant(
            "release-anybodys", "a release does not look whose lease it is",
            _release_anybodys, _STOP_WORKERS,
            frozenset({"one holder at a time", "a finished run does not start again"}),
        ),
        Mutant(
            "renew-anyway", "a lease whose deadline has passed is renewed, whatever the store says",
            _renew_anyway, _STOP_WORKERS, frozenset({"one holder at a time"}),
        ),
        Mutant(
            "no-takeover", "a run whose worker died is never granted to another",
            _no_takeover, _KILL_WORKERS, frozenset({"every run ends"}),
        ),
        Mutant(
            "no-reaper", "runs of the dead are left to the broker",
            _no_reaper, _KILL_WORKERS, frozenset({"takeover is quick"}),
            # Otherwise the broker is as quick as the reaper.
            {"CHAOS_VISIBILITY": "30"},
        ),
        Mutant(
            "acknowledge-first", "a message is acknowledged before its letter is sent",
            _acknowledge_first, _KILL_WORKERS, frozenset({"every run ends"}),
        ),
        Mutant(
            "no-claim", "a beat publishes although another one does",
            _no_claim, (), frozenset({"a slot is published once"}),
        ),
    )
}  # fmt: skip


def apply_from_environment() -> None:
    name = os.environ.get("CHAOS_MUTANT")
    if name:
        ALL[name].break_it()
