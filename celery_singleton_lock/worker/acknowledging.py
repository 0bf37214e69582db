"""Acknowledges messages together, where each alone would be a round trip to the broker.

On Redis kombu removes every message in a transaction of its own, and the worker waits for it: a quarter
of what a task costs that does nothing. Nothing is lost by waiting for a few more: a run was recorded
before its message may go, so whoever is given the message again is told that it is done.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from celery.bootsteps import StartStopStep
from kombu.transport import virtual

from celery_singleton_lock.broker.kept_client import client_of, keep_client

from .parts import parts_of

logger = logging.getLogger(__name__)

LONGEST_S: Final = 0.01
"""How long a message waits for others."""
MOST: Final = 50

_SOLO: Final = "celery.concurrency.solo"
_POOLS: Final = ("celery.concurrency.prefork", _SOLO)


class AcknowledgingStep(StartStopStep):  # type: ignore[misc]
    """Gives the consumer an `Acknowledging`, and one client, for as long as it is connected."""

    label = "Acknowledging"
    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.singleton_acknowledging = None

    def start(self, c: Any) -> None:
        keep_client(c.connection.default_channel)
        c.singleton_acknowledging = Acknowledging.of(c)

    def stop(self, c: Any) -> None:
        acknowledging, c.singleton_acknowledging = c.singleton_acknowledging, None
        if acknowledging is not None:
            acknowledging.close()

    terminate = stop


class Acknowledging:
    """Of one connection of a worker's consumer. For the loop of the consumer only."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._channel = consumer.connection.default_channel
        # Its own, for what waits when the channel is gone: it connects anew.
        self._client = client_of(self._channel)
        self._tags: list[str] = []
        self._is_timed = False
        self._endings = parts_of(consumer.app).endings
        if type(consumer.pool).__module__ == _SOLO:
            self._endings.open(self._flush_soon)

    @classmethod
    def of(cls, consumer: Any) -> Acknowledging | None:
        """None: where it would spare nothing, or where others than the loop acknowledge."""
        is_redis = consumer.connection.transport.driver_type == "redis"
        is_in_loop = consumer.hub is not None and type(consumer.pool).__module__ in _POOLS
        if not (is_redis and is_in_loop):
            return None
        # kombu can be told (ack_emulation) to let the broker forget what it has handed out.
        remembers = hasattr(consumer.connection.default_channel.qos, "pipe_or_acquire")
        return cls(consumer) if remembers else None

    def takes(self, message: Any) -> bool:
        """False: acknowledge it yourself."""
        if message.acknowledged or message.channel is not self._channel:
            self._endings.settle()
            return False
        # What `Message.ack` does here, and not in the broker: the worker may have another one.
        virtual.QoS.ack(message.channel.qos, message.delivery_tag)
        message._state = "ACK"
        self._tags.append(message.delivery_tag)
        if len(self._tags) >= MOST:
            self.flush()
        else:
            self._flush_soon()
        return True

    def _flush_soon(self) -> None:
        if not self._is_timed:
            self._is_timed = True
            self._consumer.timer.call_after(LONGEST_S, self._on_time)

    def _on_time(self) -> None:
        self._is_timed = False
        self.flush()

    def flush(self) -> None:
        """Acknowledge all that wait. Where that fails they are delivered again."""
        self._endings.settle()
        tags, self._tags = self._tags, []
        if not tags:
            return
        try:
            self._acknowledge(tags)
        except (*self._consumer.connection_errors, AttributeError) as error:
            # An AttributeError is what kombu raises for a connection that is gone.
            logger.warning("messages_not_acknowledged count=%d error=%r", len(tags), error)

    def _acknowledge(self, tags: list[str]) -> None:
        """What `Message.ack` does in the broker for one, in a transaction for all."""
        qos = self._channel.qos
        with self._client.pipeline() as pipe:
            pipe.zrem(qos.unacked_index_key, *tags).hdel(qos.unacked_key, *tags).execute()

    def close(self) -> None:
        self._endings.close()
        self.flush()
