"""Publishes runs as stock beat does, but with an id that every replica computes alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from celery.beat import _evaluate_entry_args, _evaluate_entry_kwargs

from celery_singleton_lock.broker import BROKER_TIMEOUT_S
from celery_singleton_lock.core import headers as names
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.recovery.message_note import republish

from .broker import Broker
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
    ) -> None:
        self._app = app
        self._entry_of = entry_of
        self._on_refused = on_refused
        self._on_published = on_published
        self._broker = Broker(app)
        self._suspects: set[Hashable] = set()
        """Destinations that the broker would not have: nobody else should be sent again for them."""
        self._taken: set[Due] = set()
        """Confirmed, of a batch that was not taken as a whole and so may be asked for again."""

    def prepare(self) -> None:
        """Connect to the broker, unless that is done."""
        with self._telling_trouble():
            self._broker.open()

    def publish(self, dues: Sequence[Due]) -> None:
        """Publish all, oldest first, and have them confirmed where the broker can.

        What can never be published by its own fault (arguments that cannot be serialised, an exchange
        that does not exist, no queue to go to) is reported and passed over. `NotTaken` for what a full
        queue refused, when all others are published.
        """
        open_ones = [due for due in dues if due not in self._taken]
        batch = _Batch(self._app, open_ones, self._on_published)
        with self._telling_trouble():
            self._broker.begin()
            self._send_together(self._without_suspects(batch), batch)
            self._send_rest(batch)
        self._taken = set(dues).difference(batch.not_taken) if batch.not_taken else set()
        if batch.not_taken:
            raise NotTaken(batch.not_taken)

    def publish_again(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Publish messages as they were noted in the records of their runs, each confirmed. One that
        the broker will not have is reported and passed over."""
        for message in messages:
            with self._telling_trouble():
                self._republish(message)

    def _republish(self, message: Mapping[str, Any]) -> None:
        producer, answers = self._broker.open(), self._broker.answers
        run = str(message["headers"].get("id"))
        answers.begin()
        answers.publishing = run
        try:
            republish(producer, message, mandatory=self._broker.is_confirming)
            answers.settle([run], BROKER_TIMEOUT_S)
        except self._broker.errors as error:
            if not self._broker.refuses_one(error):
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
        self._broker.close()

    @contextmanager
    def _telling_trouble(self) -> Iterator[None]:
        try:
            yield
        except self._broker.errors as error:
            self._broker.drop()
            raise BrokerUnavailable(redact(f"{type(error).__name__}: {error}")) from error

    # Many at once, and one by one

    def _send_together(self, dues: Sequence[Due], batch: _Batch) -> None:
        """Some of them may be left open, if the broker would not have one of them."""
        producer, answers = self._broker.open(), self._broker.answers
        answers.begin()
        try:
            with producer.batch():
                sent = [due for due in dues if self._send(due, producer, batch)]
            answers.settle(sent, BROKER_TIMEOUT_S)
        except self._broker.errors as error:
            if not self._broker.refuses_one(error):
                raise
            logger.warning("beat_batch_refused error=%s", redact(str(error.__cause__ or error)))
            self.close()
        if answers.returned:
            # Their queue may have been deleted: a new connection declares it anew.
            self.close()
        batch.settle([due for due in dues if due in answers.confirmed])

    def _send_rest(self, batch: _Batch) -> None:
        """One by one, until the one is found that the broker will not have; then together again."""
        while batch.open:
            if not self._send_alone(next(iter(batch.open)), batch):
                self._send_together(self._without_suspects(batch), batch)

    def _send_alone(self, due: Due, batch: _Batch) -> bool:
        """False if this is the one that the broker will not have."""
        destination = self._destination(due)
        if destination in batch.refused:
            self._refuse(due, batch, batch.refused[destination])
            return True
        producer, answers = self._broker.open(), self._broker.answers
        answers.begin()
        try:
            if not self._send(due, producer, batch):
                return True
            answers.settle([due], BROKER_TIMEOUT_S)
        except self._broker.errors as error:
            if not self._broker.refuses_one(error):
                raise
            self.close()
            self._suspects.add(destination)
            batch.refused[destination] = error
            self._refuse(due, batch, error)
            return False
        self._suspects.discard(destination)
        if due in answers.confirmed:
            batch.settle([due])
        elif due in answers.nacked:
            batch.give_up(due)
        else:
            self._refuse(due, batch, RuntimeError("no queue is bound for it"))
        return True

    def _without_suspects(self, batch: _Batch) -> list[Due]:
        if not self._suspects:
            return list(batch.open)
        return [due for due in batch.open if self._destination(due) not in self._suspects]

    def _destination(self, due: Due) -> Hashable:
        """What decides where a message goes. Its arguments may, too, but then it is tried again."""
        entry = self._entry_of(due.entry)
        options = sorted((name, repr(value)) for name, value in entry.options.items())
        return entry.task, *(option for option in options if option[0] != "headers")

    # One message

    def _send(self, due: Due, producer: Any, batch: _Batch) -> bool:
        """False if it can never be sent, by its own fault: no other should suffer for it, nor it be
        tried for ever."""
        entry = self._entry_of(due.entry)
        self._broker.answers.publishing = due
        try:
            args, kwargs = _evaluate_entry_args(entry.args), _evaluate_entry_kwargs(entry.kwargs)
        except Exception as error:  # noqa: BLE001 - logged there
            return self._refuse(due, batch, error)
        try:
            self._apply(due, entry, args, kwargs, producer, batch.plain)
        except self._broker.errors:
            raise
        except Exception as error:  # noqa: BLE001 - logged there
            return self._refuse(due, batch, error)
        return True

    def _refuse(self, due: Due, batch: _Batch, error: BaseException) -> bool:
        logger.error(
            "beat_entry_refused entry=%r slot=%s", due.entry, _as_text(due.slot), exc_info=error
        )
        batch.give_up(due, is_refused=True)
        self._on_refused(due)
        return False

    def _apply(
        self,
        due: Due,
        entry: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        producer: Any,
        plain: PlainMessages,
    ) -> None:
        task_id = run_id(self._app.main or "", due.entry, due.slot)
        # A dict of its own: the entry's is shared by all its runs.
        headers = {**(entry.options.get("headers") or {}), **_headers(due)}
        options = entry.options
        if self._broker.is_confirming:
            # Otherwise a message that no queue takes is confirmed like any other.
            options = {**options, "mandatory": True}
        if plain.send(producer, entry.task, args, kwargs, options, task_id=task_id, headers=headers):
            return
        # Ours is the only retry, with the lease in view.
        options = {**options, "task_id": task_id, "headers": headers, "retry": False}
        task = self._app.tasks.get(entry.task)
        if task is not None:
            task.apply_async(args, kwargs, producer=producer, **options)
        else:
            self._app.send_task(entry.task, args, kwargs, producer=producer, **options)


class _Batch:
    """What was asked for in one call of `publish`, and what became of it."""

    def __init__(
        self, app: Any, dues: Sequence[Due], on_published: Callable[[Sequence[Due]], None] | None
    ) -> None:
        self.plain = PlainMessages(app)
        self._on_published = on_published
        self.not_taken: list[Due] = []
        self.refused: dict[Hashable, BaseException] = {}
        self.open = dict.fromkeys(dues)

    def settle(self, dues: Sequence[Due]) -> None:
        """These are published."""
        if logger.isEnabledFor(logging.INFO):
            for due in dues:
                logger.info("slot_published entry=%r slot=%s", due.entry, _as_text(due.slot))
        for due in dues:
            self.open.pop(due, None)
        if self._on_published is not None and dues:
            self._on_published(dues)

    def give_up(self, due: Due, *, is_refused: bool = False) -> None:
        """This one is not published: for ever if it is refused, else for now."""
        self.open.pop(due, None)
        if not is_refused:
            self.not_taken.append(due)


def _headers(due: Due) -> Mapping[str, Any]:
    return {
        "celery_beat_task": True,
        names.ENTRY: due.entry,
        names.SLOT: _as_text(due.slot),
    }


def _as_text(slot: datetime) -> str:
    return slot.isoformat().replace("+00:00", "Z")
