"""A connection of our own to the broker: messages are confirmed, and nothing waits for ever."""

from __future__ import annotations

from typing import Any, Final

from amqp.exceptions import MessageNacked
from kombu.exceptions import BatchPublishError, OperationalError

from celery_singleton_lock.settings.broker import split_brokers
from celery_singleton_lock.settings.urls import scheme_of

BROKER_TIMEOUT_S: Final = 5.0


def confirming_connection(app: Any) -> Any:
    """Not connected yet: give it to `connect`."""
    options = {**_patience(app), **app.conf.broker_transport_options, "confirm_publish": True}
    return app.connection_for_write(transport_options=options)


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


def _patience(app: Any) -> dict[str, float]:
    """kombu waits for ever for a Redis that has gone silent, unless it is told not to."""
    brokers = split_brokers(app.conf.broker_write_url)
    if not brokers or not scheme_of(brokers[0]).startswith(("redis", "sentinel")):
        return {}
    return {"socket_timeout": BROKER_TIMEOUT_S, "socket_connect_timeout": BROKER_TIMEOUT_S}
