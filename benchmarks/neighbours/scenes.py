"""What is done to each of them, and what is counted."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError

from .figures import Figure
from .subjects import BEATS, LOCKS, ONE_BEAT, Subject
from .theatre import Messages, Theatre, theatre, wait_for

Counted = Mapping[Figure, float]

PATIENCE_S: Final = 45.0
"""How long we wait for a tick, or for a lock to be free again."""
ENTRIES: Final = 8
STARTING_S: Final = 8.0
AWAY_S: Final = 2.0
AFTERWARDS_S: Final = 20.0
CALM_S: Final = 15.0

CALM: Final = Figure("two beats: messages for each that is due", good=1)
GAP: Final = Figure("a beat is killed: longest gap", good=0, unit="s", at_most=PATIENCE_S)
LIVING: Final = Figure("Redis is away for 2 s: beats that end", good=0)
AROUND: Final = Figure("… messages for each that was due, until 20 s after", good=1)
AGAIN: Final = Figure(
    "a worker is killed: its job runs again after", good=0, unit="s", at_most=PATIENCE_S
)
AT_ONCE: Final = Figure("a job outlives its lock: at work at the same time", good=1)


def beat_is_killed(subject: Subject) -> Counted:
    """Two beats, eight entries a second. The one that was there first is killed: -9."""
    with theatre(subject) as stage:
        stage.write_app(entries=ENTRIES)
        messages = Messages(stage.server)
        first = stage.start_beat()
        messages.listen(30, until=lambda: len(messages.times) >= 2 * ENTRIES)
        stage.start_beat()
        messages.listen(STARTING_S)
        before, began = len(messages.times), time.time()
        messages.listen(CALM_S)
        calm = per_due(len(messages.times) - before, time.time() - began)
        killed_at = time.time()
        stage.kill(first)
        # All entries come again: some may have been the other one's all the time.
        before = len(messages.times)
        messages.listen(PATIENCE_S, until=lambda: len(messages.times) - before >= 3 * ENTRIES)
        after = messages.times[before:]
        gap = max([b - a for a, b in zip([killed_at, *after], after, strict=False)], default=PATIENCE_S)
        return {CALM: round(calm, 2), GAP: round(gap, 1)}


def per_due(count: int, seconds: float) -> float:
    """1.0 where each entry is published once a second, and 2.0 where twice. Whoever looks for 15.2
    seconds sees 15 or 16 instants at which all are due, by chance: what divides them best is taken."""
    shares = [count / ENTRIES / instants for instants in (math.floor(seconds), math.ceil(seconds))]
    return min(shares, key=lambda share: abs(share - round(share)))


def redis_is_away(subject: Subject) -> Counted:
    """Eight entries a second. The server is killed, and comes back with its data two seconds later."""
    with theatre(subject) as stage:
        stage.write_app(entries=ENTRIES)
        for _ in range(subject.replicas):
            stage.start_beat()
        Messages(stage.server).listen(STARTING_S)
        began = time.time()
        stage.server.kill()
        time.sleep(AWAY_S)
        stage.server.start()
        messages = Messages(stage.server)
        with suppress(RedisConnectionError):
            messages.listen(AFTERWARDS_S)
        around = per_due(len(messages.times), time.time() - began)
        return {LIVING: subject.replicas - stage.living, AROUND: round(around, 2)}


def worker_is_killed(subject: Subject) -> Counted:
    """A worker is killed in the middle of a job; another one is started, and the job called again."""
    with theatre(subject) as stage:
        stage.write_app()
        worker = stage.start_worker()
        # With a beat, where it is ours: it is what finds runs whose worker died.
        helps = subject.package == "celery_singleton_lock" and stage.start_beat
        if helps:
            helps()
        stage.call(5)
        if not wait_for(lambda: begun(stage) == 1, 40):
            raise TimeoutError("the first job did not begin")
        stage.kill(worker)
        killed_at = time.time()
        stage.start_worker("-n", "second@%h")
        stage.call(5)
        is_free = wait_for(lambda: begun(stage) >= 2, PATIENCE_S)
        after = stage.journal[-1][1] - killed_at if is_free else PATIENCE_S
        return {AGAIN: round(after, 1)}


def job_outlives_its_lock(subject: Subject) -> Counted:
    """The lock lasts two seconds where that can be set; the job takes ten, and is called thrice."""
    with theatre(subject) as stage:
        stage.write_app(expiry=2)
        stage.start_worker()
        for _ in range(3):
            stage.call(10)
            wait_for(lambda: begun(stage) >= 1, 40)
            time.sleep(2.5)
        wait_for(lambda: ended(stage) == begun(stage), 30)
        return {AT_ONCE: most_at_once(stage)}


def begun(stage: Theatre) -> int:
    return sum(what == "begin" for what, _ in stage.journal)


def ended(stage: Theatre) -> int:
    return sum(what == "end" for what, _ in stage.journal)


def most_at_once(stage: Theatre) -> int:
    now, most = 0, 0
    for what, _ in sorted(stage.journal, key=lambda row: row[1]):
        now += 1 if what == "begin" else -1
        most = max(most, now)
    return most


@dataclass(frozen=True, slots=True)
class Scene:
    play: Callable[[Subject], Counted]
    subjects: Sequence[Subject]
    figures: Sequence[Figure]

    @property
    def name(self) -> str:
        return self.play.__name__


SCENES: Final = (
    Scene(beat_is_killed, BEATS, (CALM, GAP)),
    Scene(redis_is_away, (*BEATS, *ONE_BEAT), (LIVING, AROUND)),
    Scene(worker_is_killed, LOCKS, (AGAIN,)),
    Scene(job_outlives_its_lock, LOCKS, (AT_ONCE,)),
)
