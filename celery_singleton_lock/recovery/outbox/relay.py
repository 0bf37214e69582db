"""The relay: publishes what is in the outbox. Any number of them share the work."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

from kombu.message import Message
from sqlalchemy.exc import SQLAlchemyError

from celery_singleton_lock.broker.batches import Batches, Way
from celery_singleton_lock.core.errors import BrokerUnavailable, LedgerUnavailable, LetterNotSent
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.databases import Database, reason_of
from celery_singleton_lock.recovery.dead_letters import announce, dead_letters_of
from celery_singleton_lock.recovery.letters import UNPUBLISHED, Letter
from celery_singleton_lock.recovery.message_note import decode_body, republish
from celery_singleton_lock.recovery.retry import RetryIn, RetryPolicy, decide
from celery_singleton_lock.settings import Settings

from . import waking
from .claiming import Claim, Claims, Held, Outcome, claims_on
from .lanes import Pending, rounds
from .listening import Listener
from .reading import required_url
from .telling import tell

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 10.0
"""How often to look for rows that nobody told of."""
PRUNE_EVERY_S: Final = 60.0
_TRANSACTION_TIMEOUT: Final = timedelta(seconds=60)
"""Longer than a batch takes, whatever the broker does."""
_FULL_QUEUE: Final = timedelta(seconds=1)
_LONGEST_PAUSE_S: Final = 10.0

Step = Callable[[str], object]


def _go_on(_step: str) -> None:
    """What happens at each step, but in tests."""


class Relay:
    """Call `run` in a thread of its own, or `drain` until nothing is left. Making one does no I/O.

    `on_step` is an aid for tests, called with the name of each step as it is reached: "claimed",
    "sending" (once a row), "published" (confirmed by the broker), "recorded" (written down, and not
    committed yet), "committed".
    """

    def __init__(self, app: Any, settings: Settings | None = None, *, on_step: Step = _go_on) -> None:
        self._app = app
        self._settings = settings or Settings.from_app(app)
        self._step = on_step
        self._database = Database(required_url(self._settings), _TRANSACTION_TIMEOUT)
        self._claims: Claims | None = None
        self._batches = Batches(
            app, Way(self._send, _destination, self._on_published, self._on_refused)
        )
        self._policy = RetryPolicy(max_retries=self._settings.outbox_max_tries - 1)
        self._outcome = Outcome()
        self._waiting: set[str] = set()
        """Keys of which a row was not taken: what comes after it must wait."""
        self._bell = threading.Event()
        self._trouble: str | None = None
        self._pause_s = 0.0
        self._next_prune = 0.0

    # Again and again

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set; then call `wake`. Never raises because a server is away."""
        waking.hang_up(self._bell)
        listener = Listener(self._database, self._settings.key_prefix, self._bell)
        listener.start()
        try:
            while not stop.is_set():
                self._bell.clear()
                self._bell.wait(self._work_until_idle(stop))
        finally:
            listener.stop()
            self.close()

    def wake(self) -> None:
        """Look at once."""
        self._bell.set()

    def _work_until_idle(self, stop: threading.Event) -> float:
        """The seconds until it should look again."""
        try:
            while not stop.is_set() and self.turn():
                pass
            self._prune_sometimes()
            retry_s = self._claims.seconds_to_retry() if self._claims else None
        except BrokerUnavailable as error:
            return self._say(f"the broker is away: {error}")
        except (SQLAlchemyError, OSError) as error:
            self._claims = None
            return self._say(f"the database is away, or has no outbox: {reason_of(error)}")
        except Exception:
            logger.exception("outbox_turn_failed")
            return self._say("a bug")
        self._say(None)
        return LOOK_EVERY_S if retry_s is None else min(LOOK_EVERY_S, max(0.0, retry_s))

    def drain(self) -> int:
        """Publish all that is pending now and not held; return how much. Raises `BrokerUnavailable`,
        and `LedgerUnavailable` if the database is away."""
        count = 0
        try:
            while (published := self.turn()) > 0:
                count += published
        except (SQLAlchemyError, OSError) as error:
            raise LedgerUnavailable(self._database.name, reason_of(error)) from error
        return count

    def close(self) -> None:
        self._batches.close()
        self._database.close()

    # One turn

    def turn(self) -> int:
        """Take what is pending in some lanes, and publish it; return how many rows were looked at."""
        if self._claims is None:
            claims = claims_on(self._database, self._settings.key_prefix, self._settings.lock_ttl)
            claims.make_lanes()
            self._claims = claims
        with self._claims.claim() as claim:
            if claim is None:
                return 0
            self._step("claimed")
            trouble = self._publish(claim)
            self._step("recorded")
        self._step("committed")
        if trouble is not None:
            raise trouble
        self._say(None)
        return len(claim.rows)

    def _publish(self, claim: Claim) -> BrokerUnavailable | None:
        """What the broker took is recorded, also when it went away in the middle of it."""
        self._outcome, self._waiting = Outcome(), set()
        trouble: BrokerUnavailable | None = None
        try:
            self._batches.prepare()
            for each in rounds(claim.rows, one_by_one=self._batches.broker.is_confirming):
                rows = [row for row in each if row.key not in self._waiting]
                for row in self._batches.publish(rows):
                    self._hold(Held(row, _FULL_QUEUE, row.tries, "its queue is full"))
        except BrokerUnavailable as error:
            trouble = error
        self._step("published")
        claim.record(self._outcome)
        return trouble

    def _hold(self, held: Held) -> None:
        """The first of its key; the others are pending still, and wait for it."""
        key = held.row.key
        if key not in self._waiting:
            self._outcome.held.append(held)
        if key is not None:
            self._waiting.add(key)

    # What a batch asks

    def _send(self, row: Pending, producer: Any) -> None:
        if row.note is None:
            raise ValueError("the row holds no message")
        self._step("sending")
        republish(
            producer,
            row.note,
            declare=self._declared(row.note.get("queue")),
            compression=row.note.get("compression"),
            # Otherwise a message that no queue takes is confirmed like any other.
            mandatory=self._batches.broker.is_confirming,
        )

    def _declared(self, queue: str | None) -> list[Any]:
        return [] if queue is None else [self._app.amqp.queues[queue]]

    def _on_published(self, rows: Sequence[Pending]) -> None:
        self._outcome.published += rows
        logger.debug("outbox_published count=%d", len(rows))
        tell(self._app, self._batches.broker.producer, rows)

    def _on_refused(self, row: Pending, error: BaseException) -> None:
        reason = redact(f"{type(error).__name__}: {error}")
        decision = decide(self._policy, row.tries, random.random())  # nosec B311 # noqa: S311 - jitter
        if not isinstance(decision, RetryIn):
            if self._give_up(row, reason):
                self._outcome.dead.append((row, reason))
                return
            decision = RetryIn(_LONGEST_PAUSE_S)
        logger.warning("outbox_refused row=%d run=%s error=%s", row.id, row.task_id, reason)
        wait = timedelta(seconds=decision.seconds)
        self._hold(Held(row, wait, row.tries + 1, reason))

    def _give_up(self, row: Pending, reason: str) -> bool:
        """False if not even its letter can be sent now."""
        letter = Letter.about(_message(row), UNPUBLISHED, exception=reason, attempts=row.tries + 1)
        try:
            dead_letters_of(self._app).send(letter)
        except LetterNotSent as error:
            logger.warning("outbox_letter_not_sent row=%d error=%s", row.id, error)
            return False
        announce(letter)
        return True

    # Now and then

    def _prune_sometimes(self) -> None:
        if self._claims is not None and time.monotonic() >= self._next_prune:
            self._next_prune = time.monotonic() + PRUNE_EVERY_S
            self._claims.prune(self._settings.outbox_keep)

    def _say(self, trouble: str | None) -> float:
        """Log it when it begins and when it ends. Returns how long to wait before the next try."""
        if trouble is None:
            if self._trouble is not None:
                logger.warning("outbox_trouble_ended")
            self._trouble, self._pause_s = None, 0.0
            return 0.0
        if self._trouble is None:
            logger.warning("outbox_trouble_began reason=%r", trouble)
        self._trouble = trouble
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s or 0.25)
        return self._pause_s * random.uniform(0.5, 1)  # nosec B311 # noqa: S311 - jitter


def _destination(row: Pending) -> Any:
    return row.destination


def _message(row: Pending) -> Message:
    """As a worker would have got it."""
    note = row.note or {"headers": {"id": row.task_id}, "body": ""}
    return Message(
        body=decode_body(note),
        headers=note["headers"],
        properties=note.get("properties") or {},
        content_type=note.get("content_type"),
        content_encoding=note.get("content_encoding"),
        delivery_tag=row.task_id,
        delivery_info={name: note.get(name) for name in ("exchange", "routing_key")},
    )
