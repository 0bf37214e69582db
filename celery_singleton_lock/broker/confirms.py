"""Publisher confirms of RabbitMQ, collected for many messages at once.

py-amqp by itself waits for the confirm of a message before it sends the next: 1,300 messages a second
on one host, where the broker takes ten times as many.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import takewhile
from typing import Any


class Answers:
    """What the broker said to the messages of a batch. By itself for a transport that does not tell:
    what was handed over without an error is done.

    Set `publishing` to what names a message before it is sent, and call `settle` after the last one.
    """

    def __init__(self) -> None:
        self.publishing: Hashable = None
        self.confirmed: set[Hashable] = set()
        self.nacked: set[Hashable] = set()
        """Refused by a full queue: may be taken later."""
        self.returned: set[Hashable] = set()
        """There is no queue for them."""

    def begin(self) -> None:
        """Forget what was said before: the next batch has answers of its own."""
        for answers in (self.confirmed, self.nacked, self.returned):
            answers.clear()

    def settle(self, sent: Iterable[Hashable], patience_s: float) -> None:
        """Wait for the answer to all of these. Raises TimeoutError if none comes for so long, and
        whatever the connection or the channel dies of."""
        self.confirmed.update(sent)


class Confirms(Answers):
    """Those of one channel of py-amqp."""

    def __init__(self, channel: Any) -> None:
        super().__init__()
        self._channel = channel
        self._last_tag = 0
        self._open: dict[int, Hashable] = {}
        self._by_task_id: dict[str, Hashable] = {}
        channel.confirm_select()
        channel.events["basic_ack"].add(self._on_ack)
        channel.events["basic_nack"].add(self._on_nack)
        channel.events["basic_return"].add(self._on_return)
        self._basic_publish = channel.basic_publish
        channel.basic_publish = self._publish

    def settle(self, sent: Iterable[Hashable], patience_s: float) -> None:
        while self._open:
            self._channel.connection.drain_events(timeout=patience_s)
        self._by_task_id.clear()

    def _publish(self, message: Any, *args: Any, **kwargs: Any) -> Any:
        # An event of Celery has no such id. It is counted as every message, but belongs to nobody.
        task_id = message.properties.get("correlation_id")
        due = self.publishing if task_id else None
        self._last_tag += 1
        self._open[self._last_tag] = due
        if due is not None:
            self._by_task_id[task_id] = due
        return self._basic_publish(message, *args, **kwargs)

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._close(tag, multiple, self.confirmed)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._close(tag, multiple, self.nacked)

    def _on_return(self, error: Exception, exchange: str, routing_key: str, message: Any) -> None:
        # It comes before the acknowledgement, which says no more than that the broker has seen it.
        due = self._by_task_id.get(message.properties.get("correlation_id"))
        if due is not None:
            self.returned.add(due)

    def _close(self, tag: int, multiple: bool, answers: set[Hashable]) -> None:
        for each in self._up_to(tag) if multiple else [tag]:
            due = self._open.pop(each, None)
            if due is not None and due not in self.returned:
                answers.add(due)

    def _up_to(self, tag: int) -> list[int]:
        return list(takewhile(lambda each: each <= tag, self._open))
