"""Brokers with messages and letters in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.message import Message

from celery_singleton_lock.recovery.dead_letters import DeadLetters
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer, TcpProxy
from tests.support import start_or_skip

QUEUE = "dead-letters"


def forget(url: str) -> None:
    """Delete the queue of letters, with all that is in it."""
    with Connection(url) as connection:
        channel = connection.default_channel
        channel.queue_purge(QUEUE) if url.startswith("redis") else channel.queue_delete(QUEUE)


def app_on(url: str, **settings: Any) -> Celery:
    app = Celery("letters", broker=url, set_as_current=False)
    app.conf.singleton_lock_url = "memory://"
    app.conf.update(settings)
    return app


@contextmanager
def own_broker(like: str) -> Iterator[RabbitMQServer | RedisServer]:
    """A server of the same kind, for a test that hurts it."""
    if like.startswith("amqp"):
        server: RabbitMQServer | RedisServer = RabbitMQServer()
    else:
        server = RedisServer("valkey", persistent=True)
    try:
        yield start_or_skip(server)
    finally:
        server.stop()


def letters_on(url: str, **settings: Any) -> DeadLetters:
    app = app_on(url, **settings)
    return DeadLetters(app, Settings.from_app(app))


def received(url: str, count: int = 1, task: str = "proj.report") -> list[Any]:
    """Messages as a worker gets them from the broker, each sent by Celery itself."""
    app = app_on(url)
    for number in range(count):
        app.send_task(task, [number], task_id=f"run-{number}", queue="work")
    with Connection(url) as connection:
        queue = app.amqp.queues["work"](connection.default_channel)
        messages = [queue.get() for _ in range(count)]
        for message in messages:
            message.ack()
    return messages


def waiting(url: str) -> list[Letter]:
    """All letters in the queue, which are taken from it."""
    with Connection(url) as connection:
        channel = connection.default_channel
        found = []
        while (message := channel.basic_get(QUEUE, no_ack=True)) is not None:
            found.append(Letter.from_message(channel.message_to_python(message)))
        return found


def letter_on(url: str) -> Letter:
    return Letter.about(received(url)[0], "failed", exception=ValueError("no"), attempts=6)


def plain_letter(**place: str) -> Letter:
    headers = {"id": "run-1", "task": "proj.report"}
    return Letter.about(
        Message(body=b"", headers=headers, delivery_tag="1", delivery_info=place), "invalid"
    )


def through(proxy: TcpProxy, url: str) -> str:
    scheme, _, rest = url.partition("://")
    path = rest.partition("/")[2]
    login = f"guest:guest@127.0.0.1:{proxy.port}" if scheme == "amqp" else f"127.0.0.1:{proxy.port}"
    return f"{scheme}://{login}/{path}"


def port_of(url: str) -> int:
    return int(url.partition("127.0.0.1:")[2].partition("/")[0])
