"""What is done to each of them, and what is counted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from redis.exceptions import ConnectionError as RedisConnectionError

from .subjects import Subject
from .theatre import Messages, Theatre, theatre, wait_for

Row = Mapping[str, object]
Scene = Callable[[Subject], Row]

PATIENCE_S: Final = 45.0
"""How long we wait for a tick, or for a lock to be free again."""
ENTRIES: Final = 8
STARTING_S: Final = 8.0


def beat_is_killed(subject: Subject) -> Row:
    """Two beats, eight entries a second. The one that was there first is killed: -9."""
    with theatre(subject) as stage:
        stage.write_app(entries=ENTRIES)
        messages = Messages(stage.server)
        first = stage.start_beat()
        messages.listen(20, until=lambda: len(messages.times) >= 2 * ENTRIES)
        stage.start_beat()
        messages.listen(STARTING_S)
        calm = count_per_tick(messages, 5.0)
        killed_at = time.time()
        stage.kill(first)
        # All entries come again: some may have been the other one's all the time.
        before = len(messages.times)
        messages.listen(PATIENCE_S, until=lambda: len(messages.times) - before >= 3 * ENTRIES)
        after = messages.times[before:]
        gap = max([b - a for a, b in zip([killed_at, *after], after, strict=False)], default=PATIENCE_S)
        return {"messages a tick, in calm": round(calm, 2), "longest gap after the kill, s": shown(gap)}


def count_per_tick(messages: Messages, seconds: float) -> float:
    """1.0 where each entry is published once a second."""
    before = len(messages.times)
    messages.listen(seconds)
    return (len(messages.times) - before) / (seconds * ENTRIES)


def redis_is_away(subject: Subject) -> Row:
    """Two beats; the server is killed, and comes back with its data two seconds later."""
    with theatre(subject) as stage:
        stage.write_app(entries=ENTRIES)
        stage.start_beat()
        stage.start_beat()
        Messages(stage.server).listen(STARTING_S)
        stage.server.kill()
        time.sleep(2)
        stage.server.start()
        messages = Messages(stage.server)
        with suppress(RedisConnectionError):
            messages.listen(20, until=lambda: len(messages.times) >= 3 * ENTRIES)
        return {
            "beats that live on, of 2": stage.living,
            "messages in the 20 s after": "go on" if len(messages.times) >= 3 * ENTRIES else "none",
        }


def worker_is_killed(subject: Subject) -> Row:
    """A worker is killed in the middle of a job; another one is started, and the job called again."""
    with theatre(subject) as stage:
        stage.write_app()
        worker = stage.start_worker()
        # With a beat, where it is ours: it is what finds runs whose worker died.
        helps = subject.package == "celery_singleton_lock" and stage.start_beat
        if helps:
            helps()
        stage.call(5)
        wait_for(lambda: begun(stage) == 1, 20)
        stage.kill(worker)
        killed_at = time.time()
        stage.start_worker("-n", "second@%h")
        stage.call(5)
        is_free = wait_for(lambda: begun(stage) >= 2, PATIENCE_S)
        after = stage.journal[-1][1] - killed_at if is_free else PATIENCE_S
        return {"the job runs again after, s": shown(after)}


def job_outlives_its_lock(subject: Subject) -> Row:
    """The lock lasts two seconds where that can be set; the job takes ten, and is called thrice."""
    with theatre(subject) as stage:
        stage.write_app(expiry=2)
        stage.start_worker()
        for _ in range(3):
            stage.call(10)
            wait_for(lambda: begun(stage) >= 1, 20)
            time.sleep(2.5)
        wait_for(lambda: ended(stage) == begun(stage), 30)
        return {"at work at the same time": most_at_once(stage)}


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


def shown(seconds: float) -> str:
    return f"> {PATIENCE_S:g}" if seconds >= PATIENCE_S else f"{seconds:.1f}"
