"""Publishes many messages at once, and finds the one that the broker will not have."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from celery_singleton_lock.core.errors import BrokerUnavailable
from celery_singleton_lock.core.redaction import redact

from . import BROKER_TIMEOUT_S
from .producing import Broker

logger = logging.getLogger(__name__)

Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Way(Generic[Item]):
    """How the items of a batch become messages, and who is told what became of them."""

    send: Callable[[Item, Any], None]
    """Publish it with this producer. Raises one of the broker's errors, or what is its own fault."""
    destination: Callable[[Item], Hashable]
    """What decides where it goes: the broker refuses all of one destination, or none."""
    on_published: Callable[[Sequence[Item]], None]
    on_refused: Callable[[Item, BaseException], None]


class Batches(Generic[Item]):
    """One after the other, over one connection, which is opened when it is needed."""

    def __init__(self, app: Any, way: Way[Item]) -> None:
        self.broker = Broker(app)
        self._way = way
        self._suspects: set[Hashable] = set()
        """Destinations that the broker would not have: nobody else should be sent again for them."""

    def prepare(self) -> None:
        """Connect to the broker, unless that is done. Raises `BrokerUnavailable`."""
        with self.telling_trouble():
            self.broker.open()

    def publish(self, items: Sequence[Item]) -> list[Item]:
        """Publish all, in order, and have them confirmed where the broker can.

        What can never be published by its own fault (arguments that cannot be serialised, an exchange
        that does not exist, no queue to go to) is refused, and passed over. Returned is what a full
        queue did not take. `BrokerUnavailable`: what was not told to be published is uncertain.
        """
        batch = _Batch(dict.fromkeys(items))
        with self.telling_trouble():
            self.broker.begin()
            self._send_together(self._without_suspects(batch), batch)
            self._send_rest(batch)
        return batch.not_taken

    def close(self) -> None:
        """Drop the connection; the next batch opens another."""
        self.broker.close()

    @contextmanager
    def telling_trouble(self) -> Iterator[None]:
        """The broker's errors become `BrokerUnavailable`, and the connection is given up."""
        try:
            yield
        except self.broker.errors as error:
            self.broker.drop()
            raise BrokerUnavailable(redact(f"{type(error).__name__}: {error}")) from error

    # Many at once, and one by one

    def _send_together(self, items: Sequence[Item], batch: _Batch[Item]) -> None:
        """Some of them may be left open, if the broker would not have one of them."""
        producer, answers = self.broker.open(), self.broker.answers
        answers.begin()
        try:
            with producer.batch():
                sent = [item for item in items if self._send(item, producer, batch)]
            answers.settle(sent, BROKER_TIMEOUT_S)
        except self.broker.errors as error:
            if not self.broker.refuses_one(error):
                raise
            logger.warning("batch_refused error=%s", redact(str(error.__cause__ or error)))
            self.close()
        self._settle([item for item in items if item in answers.confirmed], batch)
        if answers.returned:
            # Their queue may have been deleted: a new connection declares it anew.
            self.close()

    def _send_rest(self, batch: _Batch[Item]) -> None:
        """One by one, until the one is found that the broker will not have; then together again."""
        while batch.open:
            if not self._send_alone(next(iter(batch.open)), batch):
                self._send_together(self._without_suspects(batch), batch)

    def _send_alone(self, item: Item, batch: _Batch[Item]) -> bool:
        """False if this is the one that the broker will not have."""
        destination = self._way.destination(item)
        if destination in batch.refused:
            self._refuse(item, batch, batch.refused[destination])
            return True
        producer, answers = self.broker.open(), self.broker.answers
        answers.begin()
        try:
            if not self._send(item, producer, batch):
                return True
            answers.settle([item], BROKER_TIMEOUT_S)
        except self.broker.errors as error:
            if not self.broker.refuses_one(error):
                raise
            self.close()
            self._suspects.add(destination)
            batch.refused[destination] = error
            self._refuse(item, batch, error)
            return False
        self._suspects.discard(destination)
        if item in answers.confirmed:
            self._settle([item], batch)
        elif item in answers.nacked:
            batch.open.pop(item)
            batch.not_taken.append(item)
        else:
            self._refuse(item, batch, RuntimeError("no queue is bound for it"))
        return True

    def _without_suspects(self, batch: _Batch[Item]) -> list[Item]:
        if not self._suspects:
            return list(batch.open)
        return [item for item in batch.open if self._way.destination(item) not in self._suspects]

    # One message

    def _send(self, item: Item, producer: Any, batch: _Batch[Item]) -> bool:
        """False if it can never be sent, by its own fault: no other should suffer for it, nor it be
        tried for ever."""
        self.broker.answers.publishing = item
        try:
            self._way.send(item, producer)
        except self.broker.errors:
            raise
        except Exception as error:  # noqa: BLE001 - told there
            self._refuse(item, batch, error)
            return False
        return True

    def _refuse(self, item: Item, batch: _Batch[Item], error: BaseException) -> None:
        batch.open.pop(item, None)
        self._way.on_refused(item, error)

    def _settle(self, items: Sequence[Item], batch: _Batch[Item]) -> None:
        for item in items:
            batch.open.pop(item, None)
        if items:
            self._way.on_published(items)


@dataclass(slots=True)
class _Batch(Generic[Item]):
    """What was asked for in one call of `publish`, and what became of it."""

    open: dict[Item, None]
    not_taken: list[Item] = field(default_factory=list)
    refused: dict[Hashable, BaseException] = field(default_factory=dict)
    """By destination: what the broker said to the one that was sent there."""
