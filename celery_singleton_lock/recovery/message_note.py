"""A message as JSON, for the note of its run's lease: who finds that run out publishes it again."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Final

from .original import PROPERTIES, Original

LARGEST_BYTES: Final = 64 * 1024
"""Beyond this a message is left to the broker, which delivers it again in its own time."""


# json.dumps makes a new encoder for each call that wants no spaces.
_compact: Final = json.JSONEncoder(separators=(",", ":")).encode


def encode(message: Any) -> str | None:
    """All that is needed to publish a kombu message again; None if it is too large, or no JSON."""
    if len(message.body) > LARGEST_BYTES:
        return None
    original = Original.of(message)
    note = {
        **encode_body(original.body),
        "headers": dict(original.headers),
        "properties": dict(original.properties),
        "content_type": original.content_type,
        "content_encoding": original.content_encoding,
        "exchange": original.exchange,
        "routing_key": original.routing_key,
    }
    try:
        text = _compact(note)
    except (TypeError, ValueError):
        return None
    return text if len(text) <= LARGEST_BYTES else None


def is_message(note: object) -> bool:
    """Whether it is what `encode` writes. Whoever reaches the store can write something else there."""
    if not isinstance(note, Mapping):
        return False
    texts = (note.get("exchange"), note.get("routing_key"), note.get("body", ""))
    kinds = (note.get("content_type"), note.get("content_encoding"))
    headers, properties = note.get("headers"), note.get("properties")
    return (
        all(isinstance(each, str) for each in texts)
        and all(isinstance(each, str | None) for each in kinds)
        and isinstance(headers, Mapping)
        and isinstance(headers.get("id"), str)
        and isinstance(properties, Mapping)
        and set(properties) <= set(PROPERTIES)
        and ("body" in note or _is_base64(note.get("body64")))
    )


def _is_base64(text: object) -> bool:
    try:
        base64.b64decode(str(text), validate=True)
    except ValueError:
        return False
    return isinstance(text, str)


def republish(producer: Any, note: Mapping[str, Any], **options: Any) -> None:
    """Publish what `encode` wrote, with a kombu producer, to where it came from and as it was."""
    producer.publish(
        decode_body(note),
        exchange=note["exchange"],
        routing_key=note["routing_key"],
        headers=dict(note["headers"]),
        content_type=note["content_type"],
        content_encoding=note["content_encoding"],
        retry=False,
        **note["properties"],
        **options,
    )


def encode_body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body64": base64.b64encode(body).decode()}


def decode_body(note: Mapping[str, Any]) -> bytes:
    if "body64" in note:
        return base64.b64decode(note["body64"])
    return str(note["body"]).encode()
