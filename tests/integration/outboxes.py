"""Outboxes on real databases and brokers, each with an application of its own."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from celery import Celery
from kombu.connection import Connection
from sqlalchemy.orm import Session

from celery_singleton_lock import SingletonTask, outbox
from celery_singleton_lock.outbox import OutboxRow, Relay
from celery_singleton_lock.settings import Settings


class Shop:
    """An application with one task, `shop.add`, an outbox and a queue of its own."""

    def __init__(
        self, database_url: str, broker_url: str, *, prefix: str | None = None, **config: Any
    ) -> None:
        self.queue = f"q{uuid.uuid4().hex}"
        self.prefix = prefix or f"p{uuid.uuid4().hex}"
        self.broker_url = broker_url
        self.app = Celery("shop", broker=broker_url, set_as_current=False)
        self.app.conf.update(
            singleton_outbox_url=database_url,
            singleton_lock_url="memory://",
            singleton_key_prefix=self.prefix,
            singleton_lock_ttl=2,
            singleton_slot_ttl=0.5,
            task_default_queue=self.queue,
            **config,
        )

        def add(x: int, y: int = 0) -> int:
            return x + y

        task = self.app.task(base=SingletonTask, name="shop.add", shared=False, lazy=False)
        self.add: Any = task(add)
        self.engine = sa.create_engine(database_url)

    @contextmanager
    def transaction(self) -> Iterator[Session]:
        with Session(self.engine) as session, session.begin():
            yield session

    def send(self, *numbers: int, key: str | None = None, **options: Any) -> None:
        with self.transaction() as session:
            for number in numbers:
                outbox.send(session, self.add, (number,), key=key, **options)

    def relay(self, **options: Any) -> Relay:
        return Relay(self.app, Settings.from_app(self.app), **options)

    def drain(self) -> int:
        relay = self.relay()
        try:
            return relay.drain()
        finally:
            relay.close()

    @contextmanager
    def running_relay(self) -> Iterator[Relay]:
        relay, stop = self.relay(), threading.Event()
        thread = threading.Thread(target=relay.run, args=(stop,))
        thread.start()
        try:
            yield relay
        finally:
            stop.set()
            relay.wake()
            thread.join(20)

    def states(self) -> list[tuple[int, str]]:
        """The number that was sent, and the state of its row, in the order of ids."""
        with Session(self.engine) as session:
            rows = session.scalars(
                sa.select(OutboxRow).where(OutboxRow.prefix == self.prefix).order_by(OutboxRow.id)
            ).all()
            return [(json.loads(json.loads(row.message)["body"])[0][0], row.state) for row in rows]

    def received(self, queue: str | None = None) -> list[int]:
        """The numbers of all messages that are in the queue, which are taken from it."""
        numbers = []
        with Connection(self.broker_url) as connection:
            bound = self.app.amqp.queues[queue or self.queue](connection.default_channel)
            bound.declare()
            while (message := bound.get(no_ack=True)) is not None:
                numbers.append(message.payload[0][0])
        return numbers

    def close(self) -> None:
        self.engine.dispose()
