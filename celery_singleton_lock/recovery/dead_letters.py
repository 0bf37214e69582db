"""The queue of dead letters, on the user's own broker."""

from __future__ import annotations

import logging
from typing import Any, Final

from celery_singleton_lock.core.errors import LetterNotSent
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.core.signals import run_dead_lettered
from celery_singleton_lock.settings import Settings

from .letters import Letter
from .links import Links, publish

logger = logging.getLogger(__name__)

EVENT: Final = "task-dead-lettered"
_ATTRIBUTE: Final = "_singleton_dead_letters"


class DeadLetters:
    """Write letters with `send`. Any thread may, and any process forked from this one.

    Making one does no I/O.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self.queue: Final = settings.dead_letter_queue
        self._links = Links(app)

    def send(self, letter: Letter) -> None:
        """Return when the broker has the letter, in a durable queue. Raises `LetterNotSent`: then the
        message that it is about must not be acknowledged."""
        message, link = letter.to_message(self.queue), self._links.own()

        def declare_and_publish(channel: Any) -> None:
            link.ensure_queue(channel, self.queue)
            publish(channel, message)

        with link.lock:
            try:
                link.attempt(declare_and_publish)
            except Exception as error:
                # Whatever it was: the letter is not there, and the message must stay.
                link.drop()
                raise LetterNotSent(self.queue, redact(f"{type(error).__name__}: {error}")) from error

    def close(self) -> None:
        """Drop this process's connection. The next use opens another."""
        link = self._links.own()
        with link.lock:
            link.close()


def dead_letters_of(app: Any) -> DeadLetters:
    """The one of this app, made when it is first asked for. Raises `ConfigurationError`."""
    # A proxy (celery.current_app) is another object each time: the app behind it is the one.
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    # On the app, since each has the other: a weak dictionary would keep both for ever.
    kept: dict[str, Any] = app.__dict__
    if _ATTRIBUTE not in kept:
        kept.setdefault(_ATTRIBUTE, DeadLetters(app, Settings.from_app(app)))
    letters: DeadLetters = kept[_ATTRIBUTE]
    return letters


def announce(letter: Letter, dispatcher: Any | None = None) -> None:
    """Tell people, after the letter was sent: one log line, `run_dead_lettered`, and, with the event
    dispatcher of a worker, the event. Never raises: the message is still to be acknowledged."""
    logger.error(
        "run_dead_lettered task=%s run=%s reason=%s attempts=%d letter=%s exception=%r",
        letter.task,
        letter.run_id,
        letter.reason,
        letter.attempts,
        letter.id,
        letter.exception,
    )
    run_dead_lettered.send(letter=letter)
    # Without a uuid Flower would complain of the event.
    if dispatcher is not None and dispatcher.enabled and letter.run_id is not None:
        try:
            dispatcher.send(EVENT, uuid=letter.run_id, **_of_event(letter))
        except Exception:
            logger.exception("event_not_sent event=%s run=%s", EVENT, letter.run_id)


def _of_event(letter: Letter) -> dict[str, Any]:
    return {
        "name": letter.task,
        "letter": letter.id,
        "reason": letter.reason,
        "exception": letter.exception,
        "attempts": letter.attempts,
    }
