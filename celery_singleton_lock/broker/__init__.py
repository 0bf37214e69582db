"""A connection of our own to the broker: messages are confirmed, and nothing waits for ever."""

from __future__ import annotations

from typing import Any, Final

from amqp.exceptions import MessageNacked
from kombu.exceptions import BatchPublishError, OperationalError
from kombu.transport.virtual import Channel as VirtualChannel

BROKER_TIMEOUT_S: Final = 5.0


def patient_connection(app: Any, *, confirm_each: bool = True) -> Any:
    """Not connected yet: give it to `connect`. On AMQP, publishing waits for the confirm of each
    message, unless that is not wanted."""
    connection = app.connection_for_write()
    options = connection.transport_options
    # Each has options of its own, and some refuse those of others.
    match connection.transport.driver_type:
        case "amqp":
            connection.transport_options = {**options, "confirm_publish": confirm_each}
        case "redis":
            # kombu waits for ever for a Redis that has gone silent, unless it is told not to.
            patience = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), BROKER_TIMEOUT_S)
            connection.transport_options = {**patience, **options}
    return connection


def connect(connection: Any) -> None:
    """Raises one of `broker_errors`, after seconds and not after a hundred tries."""
    connection.ensure_connection(max_retries=1, timeout=2)
    if connection.transport.driver_type == "amqp":
        # py-amqp waits without a limit for the answer to most calls, and its own read_timeout is
        # read as "try again".
        connection.connection.sock.settimeout(BROKER_TIMEOUT_S)


def broker_errors(connection: Any | None) -> tuple[type[BaseException], ...]:
    """What the broker, or the way to it, is to blame for. None: there is no connection yet."""
    known = (BatchPublishError, OperationalError, MessageNacked, OSError)
    if connection is None:
        return known
    return (*known, *connection.connection_errors, *connection.channel_errors)


def has_queue(channel: Any, exchange: str, routing_key: str) -> bool:
    """False if a message would go nowhere, of which nobody would be told. Where the broker itself tells
    of it (AMQP), and where nobody needs to be there (a fanout), True."""
    if not isinstance(channel, VirtualChannel):
        return True
    if not exchange:
        return bool(routing_key)
    if channel.typeof(exchange).type == "fanout":
        return True
    return any(channel._lookup(exchange, routing_key))
