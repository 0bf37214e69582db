"""The queue of dead letters, on the user's own broker."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from celery_singleton_lock.core.errors import ConfigurationError, LetterNotSent
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.core.signals import run_dead_lettered
from celery_singleton_lock.settings import Settings

from .audit import record, whoami
from .browsing import browsing, count_messages
from .letters import Letter
from .links import Links, publish
from .replaying import NoWay, send_again

logger = logging.getLogger(__name__)

EVENT: Final = "task-dead-lettered"
_ATTRIBUTE: Final = "_singleton_dead_letters"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done with a letter, or, in a dry run, would be tried."""

    letter: Letter
    why_not: str = ""
    """Empty: it was done."""


# By these names, since `list` means something else inside the class.
Letters = list[Letter]
Outcomes = list[Outcome]
Work = Callable[[Letter], str]
"""Returns why it could not be done; empty: it was."""


class DeadLetters:
    """Write letters with `send`; work the queue with `list`, `show`, `replay` and `purge`.
    Any thread may, and any process forked from this one.

    Making one does no I/O.
    """

    def __init__(self, app: Any, settings: Settings) -> None:
        self.queue: Final = settings.dead_letter_queue
        self._app = app
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

    def list(self, *, limit: int | None = None, task: str | None = None) -> Letters:
        """The letters as they lie in the queue, oldest first, each once; none is lost or moved by it.
        Raises `BrokerUnavailable`."""
        return [each.letter for each in self._work(Choice(task=task, limit=limit), None)]

    def count(self) -> int:
        """How many letters are in the queue, without looking at them. Raises `BrokerUnavailable`."""
        return count_messages(self._app, self.queue)

    def show(self, letter_id: str) -> Letter | None:
        """The letter with this id; None if there is none."""
        with browsing(self._app, self.queue) as browser:
            letters = (found.letter for found in browser.letters())
            return next((letter for letter in letters if letter.id == letter_id), None)

    def replay(
        self,
        *,
        ids: Iterable[str] | None = None,
        task: str | None = None,
        everything: bool = False,
        limit: int | None = None,
        rate: float | None = None,
        dry_run: bool = False,
        who: str | None = None,
    ) -> Outcomes:
        """Send the messages of these letters again, each as the next generation of its run, and remove
        the letters: oldest first, at most `rate` a second.

        Safe to repeat, and to kill: a letter is removed when its message was confirmed, and a message
        that is sent twice has the same id and generation, and runs once. What cannot be sent stays.
        Raises `BrokerUnavailable`: do it again.
        """
        choice = Choice.of(ids, task, everything, limit)
        pace, link = Pace(rate), self._links.own()

        def send(letter: Letter) -> str:
            pace.wait()
            try:
                with link.lock:
                    send_again(self._app, link, letter.to_replay())
            except NoWay as error:
                return redact(str(error))
            return ""

        return self._work_and_record("dead_letters_replayed", choice, send, dry_run, who)

    def purge(
        self,
        *,
        ids: Iterable[str] | None = None,
        task: str | None = None,
        everything: bool = False,
        limit: int | None = None,
        dry_run: bool = False,
        who: str | None = None,
    ) -> Outcomes:
        """Remove these letters, oldest first, for ever. Raises `BrokerUnavailable`."""
        choice = Choice.of(ids, task, everything, limit)
        return self._work_and_record("dead_letters_purged", choice, lambda _: "", dry_run, who)

    def _work_and_record(
        self, action: str, choice: Choice, work: Work, dry_run: bool, who: str | None
    ) -> Outcomes:
        if dry_run:
            return self._work(choice, None)
        outcomes: Outcomes = []
        try:
            return self._work(choice, work, outcomes)
        finally:
            refused = sum(bool(each.why_not) for each in outcomes)
            facts = {"queue": self.queue, "what": str(choice)}
            counts = {"count": len(outcomes) - refused, "refused": refused}
            record(action, who or whoami(), app=self._app, **facts, **counts)

    def _work(self, choice: Choice, work: Work | None, outcomes: Outcomes | None = None) -> Outcomes:
        """Do `work` on each letter of the choice, once, and remove it with its repeats, unless the
        answer is why not. Without `work` only say which. `outcomes` has what was done before an
        error."""
        outcomes = [] if outcomes is None else outcomes
        firsts = Firsts()
        with browsing(self._app, self.queue) as browser:
            for found in browser.letters():
                if found.letter not in choice:
                    continue
                first = firsts.of(found.letter)
                if first is None:
                    if len(outcomes) == choice.limit:
                        if work is None:
                            break
                        # On to the end: repeats of what was done may lie anywhere.
                        continue
                    first = Outcome(found.letter, "" if work is None else work(found.letter))
                    firsts.add(first)
                    outcomes.append(first)
                if work is not None and not first.why_not:
                    browser.remove(found)
        return outcomes

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
            logger.exception("event_not_sent name=%s run=%s", EVENT, letter.run_id)


def _of_event(letter: Letter) -> dict[str, Any]:
    return {
        "name": letter.task,
        "letter": letter.id,
        "reason": letter.reason,
        "exception": letter.exception,
        "attempts": letter.attempts,
        **({"entry": letter.entry, "slot": letter.slot} if letter.entry else {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Which letters are meant."""

    ids: frozenset[str] | None = None
    task: str | None = None
    limit: int | None = None

    @classmethod
    def of(
        cls, ids: Iterable[str] | None, task: str | None, everything: bool, limit: int | None
    ) -> Choice:
        if (ids is None and task is None) != everything:
            raise ConfigurationError("say which letters: give ids, a task, or everything=True alone")
        return cls(ids=None if ids is None else frozenset(ids), task=task, limit=limit)

    def __post_init__(self) -> None:
        if self.limit is not None and self.limit < 1:
            raise ConfigurationError(f"limit = {self.limit}: give a whole number, 1 or more")

    def __contains__(self, letter: Letter) -> bool:
        return (self.ids is None or letter.id in self.ids) and self.task in (None, letter.task)

    def __str__(self) -> str:
        parts = [f"task {self.task}"] if self.task else []
        if self.ids is not None:
            parts.append(f"ids {' '.join(sorted(self.ids))}")
        return ", ".join(parts or ["all"]) + (f", at most {self.limit}" if self.limit else "")


class Pace:
    """At most so many a second, evenly; None: as fast as it goes."""

    def __init__(self, rate: float | None) -> None:
        if rate is not None and not rate > 0:
            raise ConfigurationError(f"rate = {rate}: give how many a second, above 0")
        self._gap = 0.0 if rate is None else 1 / rate
        self._next = 0.0

    def wait(self) -> None:
        now = time.monotonic()
        if now < self._next:
            time.sleep(self._next - now)
        self._next = max(now, self._next) + self._gap


class Firsts:
    """Tells a repeat from the first: a worker that died between a letter and its record leaves the
    message, and the next one writes the same letter again.

    A repeat has the id and the message of the first. Messages without an id of their own are never
    repeats: two that look alike may be two.
    """

    def __init__(self) -> None:
        self._by_id: dict[str, list[Outcome]] = {}

    def of(self, letter: Letter) -> Outcome | None:
        """What became of the first, if this is a repeat of it."""
        if letter.run_id is None:
            return None
        known = self._by_id.get(letter.id, ())
        return next((each for each in known if each.letter.original == letter.original), None)

    def add(self, first: Outcome) -> None:
        self._by_id.setdefault(first.letter.id, []).append(first)
