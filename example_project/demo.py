"""The worst half minute of a shop: beats and workers are killed and stopped, and Redis goes away.

::

    python -m example_project.demo

It brings its own server. `app` is what you would write yourself. Here
it is started, hurt and watched, and at the end counted, from what its processes recorded.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from celery_singleton_lock import SingletonError, dead_letters_of, open_schedule
from celery_singleton_lock.testing.servers import RedisServer, ServerFailed, ServerMissing

from . import database
from .app import app
from .crew import Crew
from .database import Work
from .stage import DemoFailed, Publication, Stage, cell, coloured

BEATS: Final = 2
WORKERS: Final = 3
SECOND: Final = timedelta(seconds=1)
AWAY_S: Final = 3.0
"""How long Redis is away."""
BEGINS, HAS_EXPORTED, TOO_LATE = (
    "begins to export",
    "has exported",
    "is refused with its late export of",
)
TRIES, HAS_PAID = "tries to pay", "has paid"


@dataclass
class Tale:
    """What was recorded. All that the summary says is computed from it."""

    published: list[Publication] = field(default_factory=list)
    executed: list[datetime] = field(default_factory=list)
    """The slot of each execution."""
    calm_until: datetime | None = None
    """Up to this slot nobody was hurt: none may be published twice."""
    work: list[Work] = field(default_factory=list)
    stopped: str = ""
    fence_written: int = 0
    """That of the export which the stopped worker wanted to replace."""
    letters: int = 0
    letters_left: int = 0

    def done(self, what: str, about: str) -> list[Work]:
        return [each for each in self.work if (each.what, each.about) == (what, about)]

    @property
    def due(self) -> list[datetime]:
        """Every second from the first slot that was published to the last that was executed."""
        first, last = min(self.slots_published), max(self.executed)
        return [first + n * SECOND for n in range((last - first) // SECOND + 1)]

    @property
    def slots_published(self) -> set[datetime]:
        # One may be on its way when we look.
        return {each.slot for each in self.published if each.slot <= max(self.executed)}

    @property
    def missed(self) -> list[datetime]:
        return sorted({*self.due} - {*self.executed})

    @property
    def duplicates(self) -> int:
        return len(self.executed) - len(set(self.executed))

    @property
    def copies(self) -> int:
        return len(self.published) - len({each.slot for each in self.published})

    @property
    def copies_in_calm(self) -> list[datetime]:
        calm = Counter(each.slot for each in self.published)
        return [slot for slot, n in calm.items() if n > 1 and slot <= (self.calm_until or slot)]


class Play:
    """The story, chapter by chapter. Each waits for what must happen, and for no time to pass."""

    def __init__(self, crew: Crew, stage: Stage, server: RedisServer) -> None:
        self._crew = crew
        self._stage = stage
        self._server = server
        self._schedule = open_schedule(app, by="demo")
        self._tale = Tale()

    def perform(self) -> Tale:
        self.both_beats_are_active()
        self.a_beat_is_killed()
        self.a_worker_is_killed()
        self.a_worker_is_stopped()
        self.redis_goes_away()
        self.a_job_fails()
        self._wait_for_calm()
        self._stage.look()
        self._stage.narrate("Counted, from what beats and workers recorded:")
        stage, tale = self._stage, self._tale
        tale.published, tale.work = stage.published, stage.work
        tale.executed = [slot for slot, _ in stage.counted]
        return tale

    def both_beats_are_active(self) -> None:
        self._stage.narrate("1. Both beats are active. Each slot is published once, and executed once.")
        for _ in range(BEATS):
            self._crew.start_beat()
        for _ in range(WORKERS):
            self._crew.start_worker()
        self._stage.say(f"{', '.join(self._crew.living)} are started")
        self._stage.wait_for("both beats", lambda: len(self._schedule.replicas()) == BEATS)
        self._wait_for_slots(5)
        self._wait_for_calm()
        self._tale.calm_until = self._last_slot()

    def a_beat_is_killed(self) -> None:
        beat = max(self._stage.published).beat
        self._stage.narrate(f"2. {beat}, which published the last slot, is killed. No slot is missed.")
        self._stage.warn(f"kill -9 {beat}")
        self._crew.kill(beat)
        self._wait_for_slots(3)
        self._stage.say(f"{self._crew.start_beat()} is started in its place")

    def a_worker_is_killed(self) -> None:
        self._stage.narrate("3. A worker is killed in the middle of an export, which is taken over.")
        first = self._begin_export("monday")
        self._stage.warn(f"kill -9 {first.worker}")
        self._crew.kill(first.worker)
        killed_at = time.time()
        self._stage.say(f"{self._crew.start_worker()} is started in its place")
        second = self._wait_for_successor(first)
        self._stage.say(f"that was {second.at - killed_at:.1f} s later, with a larger fence")
        self._end_export("monday")

    def a_worker_is_stopped(self) -> None:
        self._stage.narrate("4. A worker sleeps through its ttl, wakes up, and writes too late.")
        first = self._begin_export("tuesday")
        self._stage.warn(f"kill -STOP {first.worker}")
        self._crew.stop(first.worker)
        self._wait_for_successor(first)
        self._end_export("tuesday")
        self._stage.warn(f"kill -CONT {first.worker}")
        self._crew.wake(first.worker)
        # Or it is written a second time: the end of the demo says what that means.
        self._stage.wait_for(
            "a late write",
            lambda: (
                self._stage.done(TOO_LATE, "tuesday") or self._stage.done(HAS_EXPORTED, "tuesday")[1:]
            ),
        )
        self._tale.stopped = first.worker
        self._tale.fence_written = database.fence_of_export("tuesday")

    def redis_goes_away(self) -> None:
        self._stage.narrate(
            f"5. Redis is away for {AWAY_S:g} seconds. Nobody exits, and no slot is missed."
        )
        self._wait_for_calm()
        before, crew = self._last_slot(), self._crew.living
        self._stage.warn("kill -9 redis")
        self._server.kill()
        time.sleep(AWAY_S)
        self._stage.say("redis is back")
        self._server.start()
        back_at = datetime.now(UTC)
        self._stage.wait_for(
            "the slots that are late", lambda: self._is_all_executed(before, back_at + SECOND)
        )
        late = sum(before < slot < back_at for slot, _ in self._stage.counted)
        if crew != self._crew.living:
            raise DemoFailed(f"of {crew} only {self._crew.living} are left")
        self._stage.say(f"{late} slots were late, and are done; all {len(crew)} processes live on")

    def a_job_fails(self) -> None:
        self._stage.narrate("6. A payment fails, backs off, fails for good, and is replayed.")
        letters = dead_letters_of(app)
        app.tasks["shop.pay"].delay("invoice 7")
        [letter] = self._stage.wait_for("a dead letter", lambda: list(letters.list()))
        self._stage.warn(f"a dead letter: {letter.task}, {letter.exception}")
        self._tale.letters = 1
        database.set_fact("the bank is open")
        self._stage.say("the bank is open again, and the letter is replayed")
        for outcome in letters.replay(ids=[letter.id]):
            if outcome.why_not:
                raise DemoFailed(f"the letter was not replayed: {outcome.why_not}")
        self._stage.wait_for("the payment", lambda: self._stage.done(HAS_PAID, "invoice 7"))
        self._tale.letters_left = len(list(letters.list()))

    # Exports

    def _begin_export(self, day: str) -> Work:
        soon = datetime.now(UTC) + timedelta(seconds=0.5)
        self._schedule.add(f"export of {day}", "shop.export", soon, args=(day,))
        self._stage.say(f"an entry is added to the running schedule: export {day}, once")
        [first, *_] = self._stage.wait_for("an export", lambda: self._stage.done(BEGINS, day))
        return first

    def _wait_for_successor(self, first: Work) -> Work:
        [_, second, *_] = self._stage.wait_for(
            "a takeover",
            lambda: (begun := self._stage.done(BEGINS, first.about))[1:] and begun,
        )
        return second

    def _end_export(self, day: str) -> None:
        database.set_fact(f"{day} is over")
        self._stage.wait_for("the export", lambda: self._stage.done(HAS_EXPORTED, day))

    # Slots

    def _last_slot(self) -> datetime:
        return max(slot for slot, _ in self._stage.counted)

    def _wait_for_slots(self, number: int) -> None:
        enough = len(self._stage.counted) + number
        self._stage.wait_for(f"{number} slots", lambda: len(self._stage.counted) >= enough)

    def _is_all_executed(self, after: datetime, until: datetime) -> bool:
        done = {slot for slot, _ in self._stage.counted}
        return max(done) >= until and all(slot in done for slot in _seconds(after, until))

    def _wait_for_calm(self) -> None:
        """For the moment after a slot: all is acknowledged, and the next one is not due yet.

        Who is killed then leaves nothing half done, and what is counted is exact: Redis may lose a
        message in the moment in which a worker takes it, whoever uses it.
        """
        seen = len(self._stage.counted)

        def is_calm() -> bool:
            slots = {slot for slot, _ in self._stage.counted}
            return (
                len(self._stage.counted) > seen
                and datetime.now(UTC) - max(slots) < 0.7 * SECOND
                and self._is_all_acknowledged()
            )

        self._stage.wait_for("a calm moment", is_calm)

    def _is_all_acknowledged(self) -> bool:
        # What a killed worker had in hand stays there for the visibility timeout, an hour by default.
        with self._server.connect() as client:
            in_hand = [json.loads(text)[0] for text in client.hvals("unacked")]
            return not client.llen("celery") and not any(map(_is_of_a_slot, in_hand))


def _is_of_a_slot(message: dict[str, Any]) -> bool:
    return bool(message["headers"]["task"] == "shop.count")


def _seconds(after: datetime, until: datetime) -> Iterator[datetime]:
    slot = after
    while (slot := slot + SECOND) <= until:
        yield slot


def summary(tale: Tale) -> str:
    begun = sum(each.what == BEGINS for each in tale.work)
    exported = sum(each.what == HAS_EXPORTED for each in tale.work)
    refused = sum(each.what == TOO_LATE for each in tale.work)
    tries = len(tale.done(TRIES, "invoice 7"))
    return (
        f"slots     {len(tale.due)} due, {len(tale.slots_published)} published, copies {tale.copies}\n"
        f"runs      {len(tale.executed)} executed, duplicates {tale.duplicates}, "
        f"missed {len(tale.missed)}\n"
        f"exports   {exported} written, {begun - exported} taken over, {refused} late write refused\n"
        f"payments  {len(tale.done(HAS_PAID, 'invoice 7'))} paid in {tries} attempts, "
        f"{tale.letters} dead letter, {tale.letters_left} left"
    )


def faults(tale: Tale) -> Iterator[str]:
    """What did not go as promised."""
    if tale.missed:
        yield f"missed: {', '.join(f'{slot:%H:%M:%S}' for slot in tale.missed)}"
    if tale.duplicates:
        yield f"executed more than once: {tale.duplicates}"
    if tale.copies_in_calm:
        yield "slots were published twice, although nobody was hurt"
    for day in ("monday", "tuesday"):
        begun, written = tale.done(BEGINS, day), tale.done(HAS_EXPORTED, day)
        if [each.fence for each in begun] != sorted({each.fence for each in begun}):
            yield f"the fences of {day} do not grow"
        if [each.fence for each in written] != [each.fence for each in begun[-1:]]:
            yield f"{day} was not exported once, by the last who began"
    if [each.worker for each in tale.done(TOO_LATE, "tuesday")] != [tale.stopped]:
        yield f"it was not {tale.stopped} who was refused"
    if [tale.fence_written] != [each.fence for each in tale.done(BEGINS, "tuesday")[-1:]]:
        yield "the late write replaced its successor's"
    if len(tale.done(HAS_PAID, "invoice 7")) != 1 or tale.letters != 1 or tale.letters_left:
        yield "the payment was not replayed once"


def play() -> Tale:
    # It is killed, not its host: what it wrote is there, and need not be waited for on a busy disk.
    server = RedisServer(persistent=True, options={"appendfsync": "no"})
    with tempfile.TemporaryDirectory(prefix="shop-") as place, server:
        os.environ |= {"SHOP_REDIS": server.url, "SHOP_DATABASE": str(Path(place, "shop.sqlite"))}
        app.conf.broker_url = server.url
        database.create()
        with Crew(Path(place)) as crew:
            return Play(crew, Stage(crew), server).perform()


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    logging.getLogger("celery_singleton_lock").addHandler(logging.NullHandler())
    print(
        "A shop with 2 beats (b1, b2) and 3 workers (w1, w2, w3), on an embedded Valkey server.\n"
        f"Each second is a slot. {cell('07', 'b1', 'w2')} is that of second 07: "
        "published by b1, executed by w2.\n"
        "ttls are short here: 2 s for a run, 1.5 s for a slot. By default they are 30 s and 3 s."
    )
    try:
        tale = play()
    except KeyboardInterrupt:
        print("\ninterrupted; all that was started is ended")
        return 130
    except (DemoFailed, ServerFailed, ServerMissing, SingletonError) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    print(f"{summary(tale)}\n")
    wrong = list(faults(tale))
    print("\n".join(coloured(f"WRONG: {fault}", 31) for fault in wrong) or "All as promised.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
