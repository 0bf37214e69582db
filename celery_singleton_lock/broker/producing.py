"""The connection that many messages are published on."""

from __future__ import annotations

import logging
from typing import Any, Final

from kombu.common import maybe_declare
from kombu.transport.virtual import Channel as VirtualChannel
from redis.exceptions import ResponseError

from . import BROKER_TIMEOUT_S, broker_errors, connect, patient_connection
from .confirms import Answers, Confirms
from .lookups import Lookups

logger = logging.getLogger(__name__)

Errors = tuple[type[BaseException], ...]
# A queue's key is something else, or is not ours by the rules of access. Other errors of Redis (out of
# memory, a replica that cannot be written to) are against all.
_ABOUT_ONE_KEY: Final = ("WRONGTYPE", "access a key", "access one of the keys")


class Undeclarable(Exception):
    """A queue or an exchange that the broker will not have: it exists, and is not the same."""


class Broker:
    """One connection, opened when it is needed, with one producer; never silent for ever."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._connection: Any = None
        self.producer: Any = None
        self.answers = Answers()

    @property
    def errors(self) -> Errors:
        """All that says nothing against a message, but against the broker, or against its channel."""
        return broker_errors(self._connection)

    @property
    def is_confirming(self) -> bool:
        return isinstance(self.answers, Confirms)

    def refuses_one(self, error: BaseException) -> bool:
        """Whether the broker will not have one message, and has nothing against the others."""
        if self.is_confirming:
            return isinstance(error, tuple(self._connection.channel_errors))
        cause = error.__cause__ or error
        return isinstance(cause, ResponseError) and any(text in str(cause) for text in _ABOUT_ONE_KEY)

    def open(self) -> Any:
        """The producer, of a new connection if there is none."""
        if self.producer is None:
            # Confirmed one by one would be slow: `Confirms` collects the answers.
            self._connection = patient_connection(self._app, confirm_each=False)
            connect(self._connection)
            producer = _producer_class(self._app)(self._connection, auto_declare=False)
            if self._connection.transport.driver_name == "py-amqp":
                self.answers = producer.confirms = Confirms(producer.channel)
            elif isinstance(producer.channel, VirtualChannel):
                self.answers = Lookups(producer.channel)
            self.producer = producer
        return self.producer

    def begin(self) -> None:
        """A new batch begins: what could not be declared is tried again."""
        self.open().undeclarable.clear()

    def drop(self) -> None:
        """Close without a goodbye, which nobody may be there to answer."""
        if self.is_confirming:
            self._connection.collect()
        self.close()

    def close(self) -> None:
        """The next `open` makes another connection."""
        connection, self._connection, self.producer = self._connection, None, None
        self.answers = Answers()
        if connection is not None:
            try:
                connection.release()
            except Exception as error:  # noqa: BLE001 - it is given up anyway
                logger.debug("broker_connection_not_closed error=%s", type(error).__name__)


def _producer_class(app: Any) -> Any:
    class DeclaringOnce(app.amqp.Producer):  # type: ignore[misc]
        """kombu remembers what was declared, too, but looks it up by a copy bound to the channel: a
        fifth of the cost of a message. A new connection has a new producer, and so declares anew."""

        confirms: Confirms | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self._declared: dict[int, Any] = {}
            self.undeclarable: dict[int, Undeclarable] = {}

        def maybe_declare(self, entity: Any, *args: Any, **kwargs: Any) -> Any:
            declared = self._declared
            if id(entity) in declared:
                return
            if id(entity) in self.undeclarable:
                raise self.undeclarable[id(entity)]
            if self.confirms is None:
                super().maybe_declare(entity, *args, **kwargs)
            else:
                self._declare_apart(entity, self.confirms)
            declared[id(entity)] = entity  # kept alive, so that no other gets its id

        def _declare_apart(self, entity: Any, confirms: Confirms) -> None:
            """On a channel of its own: what the broker refuses closes the channel, and with it goes
            the answer to all that was sent there."""
            confirms.settle((), BROKER_TIMEOUT_S)
            try:
                with self.connection.channel() as channel:
                    maybe_declare(entity, channel)
            except self.connection.channel_errors as error:
                self.undeclarable[id(entity)] = Undeclarable(f"{entity!r}: {error}")
                raise self.undeclarable[id(entity)] from error

    return DeclaringOnce
