"""Messages that no worker can run go to the dead letters, before they are acknowledged.

Celery drops what it cannot decode and what names no task that it knows, acknowledges some calls that
cannot be made as if they had been, and stumbles over others until somebody deletes them by hand.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from celery.bootsteps import StartStopStep
from celery.worker import state
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message

from celery_singleton_lock.core.errors import ConfigurationError, LetterNotSent
from celery_singleton_lock.recovery.dead_letters import DeadLetters, announce, dead_letters_of
from celery_singleton_lock.recovery.letters import (
    INVALID,
    OUT_OF_MEMORY,
    UNDECODABLE,
    UNKNOWN_TASK,
    Letter,
    Reason,
)
from celery_singleton_lock.recovery.original import queue_of

from .envelopes import keep_broken_envelopes
from .flaws import flaw_of
from .lost_connection import close_without_a_word
from .news import tell_of_letter

logger = logging.getLogger(__name__)

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
MOST_BESIDE_THE_PREFETCH: Final = 1000
"""So many messages that wait for their letter do not keep others from being fetched."""


def install(app: Any) -> None:
    """Have the workers of this app keep what is poison to them. Does no I/O; twice is once."""
    app.steps["consumer"].add(PoisonStep)


class PoisonStep(StartStopStep):  # type: ignore[misc]
    """Stands between the consumer and the messages that it would drop."""

    label = "Poison"
    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        letters = dead_letters_of(c.app)
        if letters.queue in c.app.amqp.queues.consume_from:
            raise ConfigurationError(
                f"this worker would execute the dead letters: do not consume from {letters.queue!r}, "
                "or give singleton_dead_letter_queue another name"
            )
        self._quarantine = Quarantine(c, letters)
        self._quarantine.stand_before(c)

    def start(self, c: Any) -> None:
        close_without_a_word(c.connection)
        if c.connection.transport.driver_type == "redis":
            keep_broken_envelopes(c.connection.default_channel, self._quarantine.isolate_envelope)

    def stop(self, c: Any) -> None:
        """The connection is gone, or goes: what waits is delivered again by the broker."""
        self._quarantine.forget()


@dataclass(frozen=True, slots=True, eq=False)
class Poisoned:
    message: Any
    letter: Letter
    acknowledge: Callable[[], object]
    """Answers the broker, as Celery would have done at once."""


class Quarantine:
    """Sends the letters of one consumer. While one cannot be sent, the messages stay, unacknowledged,
    and the oldest alone is tried again, by the timer."""

    def __init__(self, consumer: Any, letters: DeadLetters) -> None:
        self._consumer = consumer
        self._letters = letters
        self._waiting: deque[Poisoned] = deque()
        self._pause_s = FIRST_PAUSE_S
        self._stay = 0

    def stand_before(self, consumer: Any) -> None:
        """Take the place of the consumer's own methods, which are called after the letter was sent."""
        on_decode_error, on_unknown_message = consumer.on_decode_error, consumer.on_unknown_message
        on_unknown_task, on_invalid_task = consumer.on_unknown_task, consumer.on_invalid_task
        create_task_handler = consumer.create_task_handler

        def decode_error(message: Any, exc: Exception) -> None:
            self.isolate(message, UNDECODABLE, exc, lambda: on_decode_error(message, exc))

        def unknown_message(body: Any, message: Any) -> None:
            why = "it is no message of Celery's: it names no task"
            self.isolate(message, INVALID, why, lambda: on_unknown_message(body, message))

        def unknown_task(body: Any, message: Any, exc: Exception) -> None:
            why = f"NotRegistered: {exc}"
            self.isolate(message, UNKNOWN_TASK, why, lambda: on_unknown_task(body, message, exc))

        def invalid_task(body: Any, message: Any, exc: Exception) -> None:
            self.isolate(message, _reason_of(exc), exc, lambda: on_invalid_task(body, message, exc))

        def guarded_task_handler(*args: Any, **kwargs: Any) -> Callable[[Any], None]:
            return self._guarding(create_task_handler(*args, **kwargs))

        consumer.on_decode_error, consumer.on_unknown_message = decode_error, unknown_message
        consumer.on_unknown_task, consumer.on_invalid_task = unknown_task, invalid_task
        consumer.create_task_handler = guarded_task_handler

    def _guarding(self, handle: Callable[[Any], None]) -> Callable[[Any], None]:
        def handle_or_keep(message: Any) -> None:
            flaw = flaw_of(message)
            if flaw is not None:
                return self.isolate(message, INVALID, flaw, lambda: self._reject(message))
            try:
                return handle(message)
            except Exception as error:
                if self._is_the_brokers(error) or message.acknowledged or _is_taken(message):
                    raise
                return self.isolate(message, _reason_of(error), error, lambda: self._reject(message))

        return handle_or_keep

    def isolate(
        self, message: Any, reason: Reason, why: Exception | str, acknowledge: Callable[[], object]
    ) -> None:
        """Send its letter, then acknowledge it; keep it if that cannot be done now."""
        letter = Letter.about(
            message,
            reason,
            exception=why,
            queue=queue_of(self._consumer.app, message),
            worker=self._consumer.hostname,
        )
        self._send_or_keep(Poisoned(message, letter, acknowledge))

    def _send_or_keep(self, poisoned: Poisoned) -> None:
        # While one waits, the way is known to be blocked: to try each would block the worker, too.
        if self._waiting or not self._send(poisoned):
            self._keep(poisoned)

    def isolate_envelope(self, raw: bytes, queue: str, error: Exception) -> None:
        """Send a letter about what is no message. The broker has let go of it: it is nowhere else."""
        message = Message(body=raw)
        message._state = "ACK"
        letter = Letter.about(
            message, UNDECODABLE, exception=error, queue=queue, worker=self._consumer.hostname
        )
        self._send_or_keep(Poisoned(message, letter, lambda: None))

    def forget(self) -> None:
        """Let go of all that waits and that the broker delivers again."""
        self._stay += 1
        self._pause_s = FIRST_PAUSE_S
        self._waiting = deque(each for each in self._waiting if each.message.acknowledged)
        if self._waiting:
            self._look_again_later()

    def _send(self, poisoned: Poisoned) -> bool:
        try:
            self._letters.send(poisoned.letter)
        except LetterNotSent as error:
            if not self._waiting:
                logger.error("poison_kept letter=%s error=%s", poisoned.letter.id, error)
            return False
        self._acknowledge(poisoned)
        announce(poisoned.letter, self._consumer.event_dispatcher)
        tell_of_letter(self._consumer.app, poisoned.letter)
        return True

    def _acknowledge(self, poisoned: Poisoned) -> None:
        try:
            poisoned.acknowledge()
        except Exception as error:
            if self._is_the_brokers(error):
                raise  # it is delivered again, and its letter repeated, under the same id
            # Celery's own report: of a task that is not known it writes a result. The letter is sent.
            logger.exception("poison_report_failed letter=%s", poisoned.letter.id)
        if not poisoned.message.acknowledged:
            self._reject(poisoned.message)

    def _is_the_brokers(self, error: Exception) -> bool:
        # For some transports kombu calls a KeyError one: so Celery connects again and again for a
        # message that lacks something.
        consumer = self._consumer
        return isinstance(
            error, consumer.connection_errors + consumer.channel_errors
        ) and not isinstance(error, LookupError)

    def _reject(self, message: Any) -> None:
        message.reject_log_error(logger, self._consumer.connection_errors)

    def _keep(self, poisoned: Poisoned) -> None:
        self._waiting.append(poisoned)
        if len(self._waiting) <= MOST_BESIDE_THE_PREFETCH:
            self._consumer.qos.increment_eventually()
        if len(self._waiting) == 1:
            self._look_again_later()

    def _look_again_later(self) -> None:
        # From the timer into the loop of the consumer: elsewhere it may not use the channel.
        self._consumer.timer.call_after(
            self._pause_s, self._consumer.call_soon, (self._look_again, self._stay)
        )
        self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)

    def _look_again(self, stay: int) -> None:
        if stay != self._stay:
            return
        while self._waiting:
            if not self._send(self._waiting[0]):
                self._look_again_later()
                return
            if len(self._waiting) <= MOST_BESIDE_THE_PREFETCH:
                self._consumer.qos.decrement_eventually()
            self._waiting.popleft()
        logger.warning("poison_all_sent")
        self._pause_s = FIRST_PAUSE_S


def _reason_of(error: Exception) -> Reason:
    if isinstance(error, DecodeError | ContentDisallowed):
        return UNDECODABLE
    return OUT_OF_MEMORY if isinstance(error, MemoryError) else INVALID


def _is_taken(message: Any) -> bool:
    """Whether a request was made of it, which now answers for it."""
    requests = (*state.reserved_requests, *state.scheduled_requests)
    return any(request.message is message for request in requests)
