"""Acknowledges messages together, where each alone would be a round trip to the broker.

On Redis kombu removes every message in a transaction of its own, and the worker waits for it: a quarter
of what a task costs that does nothing. Nothing is lost by waiting for a few more: a run was recorded
before its message may go, so whoever is given the message again is told that it is done.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from celery.bootsteps import StartStopStep
from celery.worker import state
from kombu.transport import virtual

logger = logging.getLogger(__name__)

LONGEST_S: Final = 0.005
"""How long a message waits for others."""
MOST: Final = 50

_POOLS: Final = ("celery.concurrency.prefork", "celery.concurrency.solo")


class AcknowledgingStep(StartStopStep):  # type: ignore[misc]
    """Gives the consumer an `Acknowledging` for as long as it is connected."""

    label = "Acknowledging"
    requires = ("celery.worker.consumer.connection:Connection",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        c.singleton_acknowledging = None

    def start(self, c: Any) -> None:
        c.singleton_acknowledging = Acknowledging.of(c)

    def stop(self, c: Any) -> None:
        acknowledging, c.singleton_acknowledging = c.singleton_acknowledging, None
        is_last = state.should_stop is not None or state.should_terminate is not None
        # Otherwise the connection was lost: what waits is delivered again, and told to be done.
        if acknowledging is not None and is_last:
            acknowledging.flush()

    terminate = stop


class Acknowledging:
    """Of one connection of a worker's consumer. For the loop of the consumer only."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._messages: list[Any] = []
        self._is_timed = False

    @classmethod
    def of(cls, consumer: Any) -> Acknowledging | None:
        """None: where it would spare nothing, or where others than the loop acknowledge."""
        is_redis = consumer.connection.transport.driver_type == "redis"
        is_in_loop = consumer.hub is not None and type(consumer.pool).__module__ in _POOLS
        return cls(consumer) if is_redis and is_in_loop else None

    def takes(self, message: Any) -> bool:
        """False: acknowledge it yourself. A message that waits here is one that the broker does not
        replace, and no child of the pool is to wait for that."""
        prefetched = self._consumer.qos.value
        most = prefetched - 2 * self._consumer.pool.num_processes + 1 if prefetched else MOST
        if most < 2 or message.acknowledged:
            return False
        self._messages.append(message)
        if len(self._messages) >= min(most, MOST):
            self.flush()
        elif not self._is_timed:
            self._is_timed = True
            self._consumer.timer.call_after(LONGEST_S, self._on_time)
        return True

    def _on_time(self) -> None:
        self._is_timed = False
        self.flush()

    def flush(self) -> None:
        """Acknowledge all that wait. Where that fails they are delivered again."""
        messages, self._messages = self._messages, []
        if not messages:
            return
        try:
            _acknowledge(messages)
        except (*self._consumer.connection_errors, AttributeError) as error:
            # An AttributeError is what kombu raises for a connection that is gone.
            logger.warning("messages_not_acknowledged count=%d error=%r", len(messages), error)


def _acknowledge(messages: list[Any]) -> None:
    """What `Message.ack` does for one, in a transaction for all."""
    channel = messages[0].channel
    with channel.conn_or_acquire() as client, client.pipeline() as pipe:
        for message in messages:
            channel.qos._remove_from_indices(message.delivery_tag, pipe)
        pipe.execute()
    for message in messages:
        virtual.QoS.ack(channel.qos, message.delivery_tag)
        message._state = "ACK"
