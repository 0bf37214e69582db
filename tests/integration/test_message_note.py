"""A message in a note is published again as it was."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from kombu.entity import Queue

from celery_singleton_lock.recovery import message_note
from celery_singleton_lock.testing.servers import RedisServer


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


def taken(channel: Any, queue: str) -> Any:
    message = channel.basic_get(queue, no_ack=True)
    assert message is not None
    return message


@pytest.mark.parametrize("serializer", ["json", "pickle"])
@pytest.mark.parametrize("options", [{}, {"priority": 5}, {"compression": "zlib"}])
def test_message_comes_back_to_its_queue_as_it_was(
    server: RedisServer, serializer: str, options: dict[str, Any]
) -> None:
    app = Celery(broker=server.url, set_as_current=False)
    app.conf.task_queues = [Queue("special")]
    app.send_task(
        "t", (1, "ü"), {"a": b"\xff".hex()}, task_id="r", queue="special", serializer=serializer,
        headers={"tenant": "x"}, **options,
    )  # fmt: skip
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        sent = taken(channel, "special")
        note = message_note.encode(sent)
        assert note is not None
        message_note.republish(app.amqp.Producer(connection), json.loads(note))
        again = taken(channel, "special")
    assert bytes(again.body if isinstance(again.body, bytes) else again.body.encode()) == bytes(
        sent.body if isinstance(sent.body, bytes) else sent.body.encode()
    )
    sent.headers.pop("compression", None)
    assert again.headers == sent.headers
    assert again.content_type == sent.content_type
    assert again.properties["correlation_id"] == "r"
    assert again.properties.get("priority") == sent.properties.get("priority")


def test_large_message_is_left_to_the_broker(server: RedisServer) -> None:
    app = Celery(broker=server.url, set_as_current=False)
    app.send_task("t", ("x" * message_note.LARGEST_BYTES,), queue="large")
    with app.connection_for_write() as connection:
        channel: Any = connection.default_channel
        assert message_note.encode(taken(channel, "large")) is None
