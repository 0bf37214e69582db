"""Messages that find no queue, on kombu's virtual transports (Redis and others).

Such a broker has no exchanges: kombu looks the queues up that are bound to one, and puts the message
into each. Where there is none, the message is in no queue, and nobody is told.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from .confirms import Answers


class Lookups(Answers):
    """Those of one channel. kombu looks for each message that names an exchange: to see what it found
    costs nothing."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._on_its_way: Hashable = None
        self._basic_publish = channel.basic_publish
        self._lookup = channel._lookup
        channel.basic_publish = self._publish
        channel._lookup = self._look_up

    def settle(self, sent: Iterable[Hashable], patience_s: float) -> None:
        self.confirmed.update(each for each in sent if each not in self.returned)

    def _publish(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        # An event of Celery has no such id; it belongs to nobody, and need not be heard.
        is_task = message["properties"].get("correlation_id")
        self._on_its_way = self.publishing if is_task else None
        return self._basic_publish(message, *args, **kwargs)

    def _look_up(self, exchange: str, *args: Any, **kwargs: Any) -> Any:
        queues = self._lookup(exchange, *args, **kwargs)
        if not queues and self._on_its_way is not None:
            self.returned.add(self._on_its_way)
        return queues
