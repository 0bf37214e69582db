"""The story of the demo, chapter by chapter."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from celery_singleton_lock import dead_letters_of, open_schedule
from celery_singleton_lock.testing.servers import RedisServer
from example_project.app import app
from example_project.tasks import notify_partner

from . import records
from .crew import Crew
from .records import Work
from .stage import DemoFailed, Stage
from .tale import (
    BEGINS,
    HAS_EXPORTED,
    HAS_SENT,
    INVOICE,
    MONDAY,
    SECOND,
    TOO_LATE,
    TUESDAY,
    Tale,
)

BEATS: Final = 2
WORKERS: Final = 3
ORDERS: Final = 20
AWAY_S: Final = 3.0
"""How long Redis is away."""


class Play:
    """The story, chapter by chapter. Each waits for what must happen, and for no time to pass."""

    def __init__(self, crew: Crew, stage: Stage, server: RedisServer) -> None:
        self._crew = crew
        self._stage = stage
        self._server = server
        self._schedule = open_schedule(app, by="demo")
        self._tale = Tale()
        self._left_in_hand: set[str] = set()
        self.flower = ""
        """Its address, once it was started."""

    def perform(self) -> Tale:
        self.both_beats_are_active()
        self.a_beat_is_killed()
        self.a_worker_is_killed()
        self.a_worker_is_stopped()
        self.redis_goes_away()
        self.a_job_fails()
        self.orders_are_placed()
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
        self.flower = self._crew.start_flower()
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
        first = self._begin_export(MONDAY)
        self._stage.warn(f"kill -9 {first.worker}")
        self._crew.kill(first.worker)
        self._left_in_hand.add(first.run)
        killed_at = datetime.now(UTC)
        self._stage.say(f"{self._crew.start_worker()} is started in its place")
        second = self._wait_for_successor(first)
        self._stage.say(
            f"that was {(second.at - killed_at).total_seconds():.1f} s later, with a larger fence"
        )
        self._end_export(MONDAY)

    def a_worker_is_stopped(self) -> None:
        self._stage.narrate("4. A worker sleeps through its ttl, wakes up, and writes too late.")
        first = self._begin_export(TUESDAY)
        self._stage.warn(f"kill -STOP {first.worker}")
        self._crew.stop(first.worker)
        self._wait_for_successor(first)
        self._end_export(TUESDAY)
        self._stage.warn(f"kill -CONT {first.worker}")
        self._crew.wake(first.worker)
        # Or it is written a second time: the end of the demo says what that means.
        self._stage.wait_for(
            "a late write",
            lambda: self._stage.done(TOO_LATE, TUESDAY) or self._stage.done(HAS_EXPORTED, TUESDAY)[1:],
        )
        self._tale.stopped = first.worker
        self._tale.fence_written = records.fence_of_export(TUESDAY)

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
        self._stage.narrate("6. An invoice is not taken, backs off, fails for good, and is replayed.")
        letters = dead_letters_of(app)
        notify_partner.delay(INVOICE)
        found = self._stage.wait_for("a dead letter", lambda: list(letters.list()))
        self._tale.letters = len(found)
        self._stage.warn(f"a dead letter: {found[0].task}, {found[0].exception}")
        records.set_sign("the partner answers")
        self._stage.say("the partner answers again, and the letter is replayed")
        for outcome in letters.replay(everything=True):
            if outcome.why_not:
                raise DemoFailed(f"the letter was not replayed: {outcome.why_not}")
        self._stage.wait_for("the invoice", lambda: self._stage.done(HAS_SENT, INVOICE))
        self._tale.letters_left = len(list(letters.list()))

    def orders_are_placed(self) -> None:
        self._stage.narrate("7. Orders are placed. Each commits with its e-mail, which is sent once.")
        records.order(ORDERS)
        self._stage.say(f"{ORDERS} orders are placed, and so many messages are in the outbox")
        self._stage.wait_for("e-mails", lambda: records.orders_and_emails() == (ORDERS, ORDERS))
        self._tale.orders, self._tale.emails = records.orders_and_emails()
        self._stage.say(f"{self._tale.emails} e-mails are sent")

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
        records.set_sign(f"{day} is over")
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

        Who is killed then leaves nothing half done, and what is counted is exact. Two limits of
        kombu 5.7 are kept out of the story: a message is lost whose worker loses Redis in the moment
        in which it takes it, and a worker that has put a message aside exits when it loses Redis.
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
            in_hand = {json.loads(text)[0]["headers"]["id"] for text in client.hvals("unacked")}
            return not client.llen("celery") and in_hand <= self._left_in_hand


def _seconds(after: datetime, until: datetime) -> Iterator[datetime]:
    slot = after
    while (slot := slot + SECOND) <= until:
        yield slot
