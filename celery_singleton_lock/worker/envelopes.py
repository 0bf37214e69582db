"""What kombu takes from a Redis list and cannot read: without this it is lost, and ends the worker.

On Redis a message is a JSON text, the envelope, with body, headers and properties in it. kombu takes it
from the list, and only then reads it: one that is broken is in no list any more, and not delivered.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from queue import Empty
from typing import Any

Keep = Callable[[bytes, str, Exception], None]


def keep_broken_envelopes(channel: Any, keep: Keep) -> None:
    """Call `keep` with each envelope that this channel cannot read, its queue and the error, instead of
    raising it into the worker's loop."""
    client, read = channel.client, channel.handlers["BRPOP"]
    parse_response = client.parse_response
    taken: list[Any] = []

    def remember_and_parse(*args: Any, **options: Any) -> Any:
        taken[:] = [parse_response(*args, **options)]
        return taken[0]

    def read_or_keep(**options: Any) -> Any:
        taken.clear()
        try:
            return read(**options)
        except Empty:
            raise
        except Exception as error:
            # Only what failed before it was a message: afterwards it is the handler's to answer for.
            if not taken or not taken[0] or not _is_broken(channel, taken[0][1]):
                raise
            queue, raw = taken[0]
            keep(raw, queue.decode(errors="replace").rsplit(channel.sep, 1)[0], error)
            return True

    client.parse_response = remember_and_parse
    channel.handlers["BRPOP"] = read_or_keep


def _is_broken(channel: Any, raw: bytes) -> bool:
    try:
        place = channel.Message(json.loads(raw), channel=channel).delivery_info
        return not {"exchange", "routing_key"} <= place.keys()
    except Exception:  # noqa: BLE001 - that is the question
        return True
