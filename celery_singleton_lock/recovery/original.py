"""A message as it was, without what belonged to one delivery of it. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

# How often it was delivered: brokers write it into the headers.
_OF_REDELIVERY: Final = frozenset({"redelivered", "x-delivery-count", "x-acquired-count"})
# The properties that AMQP knows, less: `expiration`, or the broker would drop it unseen; `user_id`,
# which RabbitMQ takes from that user only; and the headers, which kombu has under two names.
PROPERTIES: Final = (
    "app_id", "cluster_id", "correlation_id", "delivery_mode", "message_id", "priority", "reply_to",
    "timestamp", "type",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """What is needed to publish the message once more. The body is as it came, never decoded."""

    body: bytes
    headers: Mapping[str, Any] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    content_type: str | None = None
    content_encoding: str | None = None
    exchange: str = ""
    routing_key: str = ""

    @classmethod
    def of(cls, message: Any) -> Original:
        """Of a kombu message of any transport, also one that cannot be decoded."""
        headers = {
            name: value
            for name, value in _mapping(message.headers).items()
            if name not in _OF_REDELIVERY
        }
        if not message.errors:
            # kombu has decompressed the body by now. With an error it is still compressed.
            headers.pop("compression", None)
        properties, place = _mapping(message.properties), _mapping(message.delivery_info)
        return cls(
            body=_as_bytes(message.body, message.content_encoding),
            headers=headers,
            properties={
                name: properties[name] for name in PROPERTIES if properties.get(name) is not None
            },
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            exchange=str(place.get("exchange") or ""),
            routing_key=str(place.get("routing_key") or ""),
        )

    @property
    def run_id(self) -> str | None:
        """None if it has none that could be used."""
        return self._text("id")

    @property
    def task(self) -> str | None:
        return self._text("task")

    @property
    def priority(self) -> int:
        priority = self.properties.get("priority")
        return priority if isinstance(priority, int) else 0

    def _text(self, name: str) -> str | None:
        value = self.headers.get(name)
        return value if isinstance(value, str) and value else None


def fingerprint(original: Original, message: Any) -> str:
    """Names a message that has no id of its own; the same for each delivery of it.

    Where the broker itself does not name messages (RabbitMQ), two that are equal have one fingerprint.
    """
    tag = message.delivery_tag
    facts = [
        tag if isinstance(tag, str) else None,  # else it only counts the deliveries of one channel
        original.exchange,
        original.routing_key,
        original.headers,
        original.properties,
    ]
    text = json.dumps(facts, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode(errors="replace") + b"\0" + original.body).hexdigest()


def queue_of(app: Any, message: Any) -> str | None:
    """The queue of the app that the message came through; None if it has none of that kind."""
    place = _mapping(message.delivery_info)
    exchange, routing_key = place.get("exchange") or "", place.get("routing_key") or ""
    for queue in app.amqp.queues.values():
        if (queue.exchange.name, queue.routing_key) == (exchange, routing_key):
            return str(queue.name)
    return str(routing_key) or None if not exchange else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_bytes(body: object, encoding: str | None) -> bytes:
    if isinstance(body, str):
        # py-amqp decodes by the content encoding whatever can be decoded by it.
        try:
            return body.encode(encoding or "utf-8")
        except (LookupError, ValueError):
            return body.encode(errors="surrogatepass")
    return bytes(body) if isinstance(body, bytes | bytearray | memoryview) else b""
