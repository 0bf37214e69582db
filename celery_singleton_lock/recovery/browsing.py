"""Looks through the queue of letters, oldest first, without losing or reordering any.

A browser sees the letters that are there when it begins: one that comes back meanwhile, because its
replay failed again, is not met twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from amqp import NotFound
from kombu.exceptions import ChannelError
from kombu.message import Message

from celery_singleton_lock.broker import broker_errors, connect, patient_connection
from celery_singleton_lock.core.errors import BrokerUnavailable, ConfigurationError
from celery_singleton_lock.core.redaction import redact

from .letters import Letter

PAGE: Final = 100


@dataclass(frozen=True, slots=True)
class Found:
    """A letter, and where it lies."""

    letter: Letter
    place: Any = field(repr=False)


class Browser(Protocol):
    def letters(self) -> Iterator[Found]:
        """Oldest first."""

    def remove(self, found: Found) -> None:
        """For ever. If somebody else was faster, that is as good."""


@contextmanager
def browsing(app: Any, queue: str) -> Iterator[Browser]:
    """Whatever ends this, what was not removed is in the queue, and in its place.

    Raises `BrokerUnavailable`, and `ConfigurationError` where the broker cannot be browsed.
    """
    with _connected(app) as connection:
        yield _browser_of(connection, queue)


def count_messages(app: Any, queue: str) -> int:
    """How many there are to be fetched; on any broker. Raises `BrokerUnavailable`."""
    with _connected(app) as connection:
        try:
            return int(connection.channel().queue_declare(queue=queue, passive=True).message_count)
        except (ChannelError, NotFound):
            return 0  # there is no such queue yet


@contextmanager
def _connected(app: Any) -> Iterator[Any]:
    connection = patient_connection(app)
    try:
        connect(connection)
        yield connection
        # Also the broker's word that it has read what was removed.
        connection.release()
    except broker_errors(connection) as error:
        raise BrokerUnavailable(redact(f"{type(error).__name__}: {error}")) from error
    finally:
        connection.collect()


def _browser_of(connection: Any, queue: str) -> Browser:
    match connection.transport.driver_type:
        case "redis":
            return RedisBrowser(connection.default_channel, queue)
        case "amqp":
            # When the connection ends, also by the death of this process, the broker puts all back in
            # its place that was fetched and not acknowledged.
            return AmqpBrowser(connection.channel(), queue)
    name = connection.transport.driver_name
    raise ConfigurationError(
        f"dead letters cannot be browsed safely on this broker ({name}): use its own tools for the "
        f"queue {queue!r}"
    )


class RedisBrowser:
    """Reads the list where it is: nothing is ever taken out to be looked at."""

    def __init__(self, channel: Any, queue: str) -> None:
        from redis import Redis

        self._channel = channel
        # Not the channel's own client, which adds the prefix for some commands and not for others.
        self._client: Any = Redis(connection_pool=channel.pool)
        self._keys = [
            f"{channel.global_keyprefix}{channel._q_for_pri(queue, step)}"
            for step in channel.priority_steps
        ]
        self._removed = 0

    def letters(self) -> Iterator[Found]:
        for key in self._keys:
            yield from self._letters_at(key)

    def _letters_at(self, key: str) -> Iterator[Found]:
        self._removed, seen, all_of_them = 0, 0, self._client.llen(key)
        while seen < all_of_them:
            # Counted from the end, where the oldest are: new ones do not move them.
            kept, wanted = seen - self._removed, min(PAGE, all_of_them - seen)
            page = self._client.lrange(key, -(kept + wanted), -(kept + 1))
            if not page:
                return
            for raw in reversed(page):
                seen += 1
                yield Found(self._read(raw), (key, raw))

    def remove(self, found: Found) -> None:
        # By its content, which has a tag of its own: no two are equal, and none moves away meanwhile.
        self._removed += self._client.lrem(found.place[0], -1, found.place[1])

    def _read(self, raw: bytes) -> Letter:
        try:
            return Letter.from_message(self._channel.Message(json.loads(raw), channel=self._channel))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            # Not even an envelope: somebody pushed it there.
            return Letter.from_message(Message(body=raw))


class AmqpBrowser:
    """Fetches the letters and acknowledges none but those that are removed."""

    def __init__(self, channel: Any, queue: str) -> None:
        self._channel = channel
        self._queue = queue

    def letters(self) -> Iterator[Found]:
        for _ in range(self._count()):
            message = self._channel.basic_get(self._queue)
            if message is None:
                return
            message = self._channel.message_to_python(message)
            yield Found(Letter.from_message(message), message)

    def _count(self) -> int:
        try:
            return int(self._channel.queue_declare(queue=self._queue, passive=True).message_count)
        except NotFound:
            return 0

    def remove(self, found: Found) -> None:
        found.place.ack()
