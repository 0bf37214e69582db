"""A message as JSON, for the note of its run's lease: who finds that run out publishes it again."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

LARGEST_BYTES: Final = 64 * 1024
"""Beyond this a message is left to the broker, which delivers it again in its own time."""

# `expiration` would have the broker drop it unseen; `user_id` is taken from that user only; the rest
# belongs to one delivery.
_PROPERTIES: Final = (
    "app_id", "correlation_id", "delivery_mode", "message_id", "priority", "reply_to", "timestamp",
    "type",
)  # fmt: skip
# kombu has decompressed the body by now, and how often it came is not for the next one.
_NOT_OF_THE_MESSAGE: Final = frozenset({"compression", "redelivered", "x-delivery-count"})


def encode(message: Any) -> dict[str, Any] | None:
    """All that is needed to publish a kombu message again; None if it is too large, or no JSON."""
    body = message.body
    if len(body) > LARGEST_BYTES:
        return None
    properties, place = message.properties or {}, message.delivery_info or {}
    note = {
        **_encode_body(body),
        "headers": {
            name: value
            for name, value in (message.headers or {}).items()
            if name not in _NOT_OF_THE_MESSAGE
        },
        "properties": {
            name: properties[name] for name in _PROPERTIES if properties.get(name) is not None
        },
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "exchange": place.get("exchange") or "",
        "routing_key": place.get("routing_key") or "",
    }
    try:
        size = len(json.dumps(note, separators=(",", ":")))
    except (TypeError, ValueError):
        return None
    return note if size <= LARGEST_BYTES else None


def republish(producer: Any, note: Mapping[str, Any], **options: Any) -> None:
    """Publish what `encode` wrote, with a kombu producer, to where it came from and as it was."""
    producer.publish(
        _decode_body(note),
        exchange=note["exchange"],
        routing_key=note["routing_key"],
        headers=dict(note["headers"]),
        content_type=note["content_type"],
        content_encoding=note["content_encoding"],
        retry=False,
        **note["properties"],
        **options,
    )


def _encode_body(body: str | bytes | memoryview) -> dict[str, str]:
    if isinstance(body, str):
        return {"body": body}
    raw = bytes(body)
    try:
        return {"body": raw.decode()}
    except UnicodeDecodeError:
        return {"body64": base64.b64encode(raw).decode()}


def _decode_body(note: Mapping[str, Any]) -> bytes:
    if "body64" in note:
        return base64.b64decode(note["body64"])
    return str(note["body"]).encode()
