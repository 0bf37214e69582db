"""Publishes runs as stock beat does, but with an id that every replica computes alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs

from celery_singleton_lock.broker import BROKER_TIMEOUT_S
from celery_singleton_lock.broker.batches import Batches, Way
from celery_singleton_lock.core import headers as names
from celery_singleton_lock.recovery.message_note import republish

from .entries import BrokerUnavailable, Due, NotTaken
from .plain_message import PlainMessages
from .plan import run_id

logger = logging.getLogger(__name__)


class Publisher:
    """`entry_of` finds the Celery entry of a name. The connection is opened when it is needed."""

    def __init__(
        self,
        app: Any,
        entry_of: Callable[[str], Any],
        on_refused: Callable[[Due], None],
        on_published: Callable[[Sequence[Due]], None] | None = None,
        more_headers: Callable[[str, str, datetime], Mapping[str, str]] | None = None,
    ) -> None:
        """`more_headers` is asked for each message, by the id of its run, its entry and its slot."""
        self._app = app
        self._entry_of = entry_of
        self._on_refused = on_refused
        self._on_published = on_published
        self._more_headers = more_headers
        self._batches = Batches(app, Way(self._send, self._destination, self._settle, self._refuse))
        self._plain: PlainMessages
        self._taken: set[Due] = set()
        """Confirmed, of a batch that was not taken as a whole and so may be asked for again."""

    def prepare(self) -> None:
        """Connect to the broker, unless that is done."""
        self._batches.prepare()

    def publish(self, dues: Sequence[Due]) -> None:
        """Publish all, oldest first, and have them confirmed where the broker can.

        What can never be published by its own fault (arguments that cannot be serialised, an exchange
        that does not exist, no queue to go to) is reported and passed over. `NotTaken` for what a full
        queue refused, when all others are published.
        """
        self._plain = PlainMessages(self._app)
        not_taken = self._batches.publish([due for due in dues if due not in self._taken])
        self._taken = set(dues).difference(not_taken) if not_taken else set()
        if not_taken:
            raise NotTaken(not_taken)

    def publish_anew(self, dues: Sequence[Due]) -> None:
        """`publish`, of what was published before, and is not told of as published once more."""
        self._plain = PlainMessages(self._app)
        if not_taken := self._batches.publish(dues):
            raise NotTaken(not_taken)

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Publish messages as they were noted in the records of their runs, each confirmed. One that
        the broker will not have is reported and passed over."""
        for message in messages:
            with self._batches.telling_trouble():
                self._republish(message)

    def _republish(self, message: Mapping[str, Any]) -> None:
        broker = self._batches.broker
        producer, answers = broker.open(), broker.answers
        run = str(message["headers"].get("id"))
        answers.begin()
        answers.publishing = run
        try:
            marked = {**message, "headers": {**message["headers"], names.AGAIN: True}}
            republish(producer, marked, mandatory=broker.is_confirming)
            answers.settle([run], BROKER_TIMEOUT_S)
        except broker.errors as error:
            if not broker.refuses_one(error):
                raise
            self.close()
            logger.error("run_refused run=%s", run, exc_info=error)
            return
        if run in answers.nacked:
            raise BrokerUnavailable(f"the queue of run {run} does not take it")
        if run in answers.returned:
            logger.error("run_refused run=%s: no queue is bound for it", run)

    def close(self) -> None:
        """Drop the connection; the next publish opens another."""
        self._batches.close()

    # What a batch asks

    def _destination(self, due: Due) -> Hashable:
        """What decides where a message goes. Its arguments may, too, but then it is tried again."""
        entry = self._entry_of(due.entry)
        options = sorted((name, repr(value)) for name, value in entry.options.items())
        return entry.task, *(option for option in options if option[0] != "headers")

    def _send(self, due: Due, producer: Any) -> None:
        entry = self._entry_of(due.entry)
        args, kwargs = _evaluated(entry)
        task_id = run_id(self._app.main or "", due.entry, due.slot)
        # A dict of its own: the entry's is shared by all its runs.
        headers = {**(entry.options.get("headers") or {}), **_headers(due)}
        if self._more_headers is not None:
            headers.update(self._more_headers(task_id, due.entry, due.slot))
        options = entry.options
        if due.expires is not None:
            options = {**options, "expires": due.expires}
        if self._batches.broker.is_confirming:
            # Otherwise a message that no queue takes is confirmed like any other.
            options = {**options, "mandatory": True}
        plain = self._plain
        if plain.send(producer, entry.task, args, kwargs, options, task_id=task_id, headers=headers):
            return
        # Ours is the only retry, with the lease in view.
        options = {**options, "task_id": task_id, "headers": headers, "retry": False}
        task = self._app.tasks.get(entry.task)
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            self._app.send_task(entry.task, args, kwargs, producer=producer, **options)

    def _settle(self, dues: Sequence[Due]) -> None:
        dues = [due for due in dues if not due.again]
        if logger.isEnabledFor(logging.INFO):
            for due in dues:
                logger.info("slot_published entry=%r slot=%s", due.entry, names.slot_text(due.slot))
        if dues and self._on_published is not None:
            self._on_published(dues)

    def _refuse(self, due: Due, error: BaseException) -> None:
        logger.error(
            "beat_entry_refused entry=%r slot=%s", due.entry, names.slot_text(due.slot), exc_info=error
        )
        self._on_refused(due)


class BadArguments(Exception):
    """Arguments of an entry that are computed when it is due, and could not be."""


def _evaluated(entry: Any) -> tuple[list[Any], dict[str, Any]]:
    try:
        return _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
    except Exception as error:
        # Also one that the broker might raise: it has nothing to do with this.
        raise BadArguments(f"{type(error).__name__}: {error}") from error


def _headers(due: Due) -> Mapping[str, Any]:
    headers: dict[str, Any] = {
        "celery_beat_task": True,
        names.ENTRY: due.entry,
        names.SLOT: names.slot_text(due.slot),
    }
    if due.in_turn:
        headers[names.IN_TURN] = True
    if due.again:
        headers[names.AGAIN] = True
    return headers
