"""The way to the broker for letters and replays: each message is confirmed, or an error is raised."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar

from amqp import Channel as AmqpChannel
from amqp import NotFound

from celery_singleton_lock.broker import BROKER_TIMEOUT_S, broker_errors, connect, patient_connection

from .letters import Outgoing

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class Link:
    """One connection of one process, opened when it is needed. Use it under its lock."""

    def __init__(self, app: Any) -> None:
        self.lock: Final = threading.RLock()
        self._app = app
        self._connection: Any = None
        self._opened: Any = None
        self._ensured: set[str] = set()

    def attempt(self, work: Callable[[Any], Result]) -> Result:
        """Call `work` with a channel; once more with a fresh one if the connection turned out to be
        dead, or the queue to be gone. What is raised by the second try is raised."""
        fresh = self._opened is None
        try:
            return work(self._channel())
        except broker_errors(self._connection) as error:
            # Never used again: a confirm that is still on its way would be taken for the next one's.
            self.drop()
            if fresh:
                raise
            logger.debug("broker_connection_renewed error=%s", type(error).__name__)
        try:
            return work(self._channel())
        except broker_errors(self._connection):
            self.drop()
            raise

    def ensure_queue(self, channel: Any, name: str) -> None:
        """A durable queue of that name is there. One that exists is taken as it is, so that it may be
        of any type; asked once a connection: `publish` finds out when it is gone."""
        if name not in self._ensured:
            if not _exists(channel, name):
                channel.queue_declare(queue=name, durable=True, exclusive=False, auto_delete=False)
            self._ensured.add(name)

    def close(self) -> None:
        """Say goodbye to the broker; the next use connects again."""
        self._end("release")

    def drop(self) -> None:
        """Like `close`, without a word to a broker that may be silent."""
        self._end("collect")

    def _end(self, how: str) -> None:
        connection, self._connection, self._opened = self._connection, None, None
        self._ensured.clear()
        if connection is not None:
            try:
                getattr(connection, how)()
            except Exception as error:  # noqa: BLE001 - it is given up anyway
                logger.debug("broker_connection_not_closed error=%s", type(error).__name__)

    def _channel(self) -> Any:
        if self._opened is None:
            self._connection = patient_connection(self._app)
            connect(self._connection)
            self._opened = self._connection.default_channel
        return self._opened


class Links:
    """The link of this process. Those of the processes it was forked from are kept, and left alone: to
    close one, or to have it collected, would end the parent's connection."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._by_process: dict[int, Link] = {}

    def own(self) -> Link:
        return self._by_process.setdefault(os.getpid(), Link(self._app))


def _exists(channel: Any, queue: str) -> bool:
    if not isinstance(channel, AmqpChannel):
        return False  # others do not mind to declare it again
    # A channel that asks for what is not there is closed by the broker.
    with channel.connection.channel() as asking:
        try:
            asking.queue_declare(queue=queue, passive=True)
        except NotFound:
            return False
    return True


def publish(channel: Any, message: Outgoing) -> None:
    """Have it confirmed where the broker can, and refused by it if no queue would take it."""
    prepared = channel.prepare_message(
        message.body,
        message.priority,
        message.content_type,
        message.content_encoding,
        message.headers,
        dict(message.properties),
    )
    channel.basic_publish(
        prepared,
        exchange=message.exchange,
        routing_key=message.routing_key,
        mandatory=True,
        confirm_timeout=BROKER_TIMEOUT_S,
    )
