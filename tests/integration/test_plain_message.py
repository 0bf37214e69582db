"""The short way sends what Celery itself would send, to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, Task
from kombu.entity import Queue

from celery_singleton_lock.beat.plain_message import is_plain, send_plain
from celery_singleton_lock.testing.servers import RedisServer

OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "queue": {"queue": "other"},
    "routing": {"exchange": "topics", "routing_key": "a.b"},
    "priority": {"priority": 5},
    "serializer": {"serializer": "json"},
    "compression": {"compression": "zlib"},
    "headers": {"headers": {"tenant": "x"}},
}
CHANGES = ("delivery_tag", "origin", "reply_to")


def work(a: int, b: int = 2) -> None: ...


class CustomTask(Task):  # type: ignore[misc]
    def apply_async(self, *args: Any, **kwargs: Any) -> Any:
        return super().apply_async(*args, **kwargs)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=[False, True], ids=["", "with events"])
def app(server: RedisServer, request: pytest.FixtureRequest) -> Celery:
    app = Celery("plain", broker=server.url, set_as_current=False)
    app.conf.task_queues = [Queue("celery"), Queue("other"), Queue("routed")]
    app.conf.task_routes = {"plain.routed": "routed"}
    app.conf.task_send_sent_event = request.param
    app.conf.task_create_missing_queues = True

    app.task(name="plain.limited", time_limit=60, soft_time_limit=50, ignore_result=True)(work)
    app.task(name="plain.routed", serializer="json")(work)
    app.task(name="plain.expiring", expires=30)(work)
    app.task(name="plain.custom", base=CustomTask)(work)
    return app


def sent(server: RedisServer) -> list[Any]:
    """Everything that lies in any queue, without what differs between any two messages."""
    client: Any = server.connect()
    messages = []
    for queue in sorted(client.scan_iter(_type="list")):
        for text in client.lrange(queue, 0, -1):
            message = json.loads(text)
            for part in (message["properties"], message["headers"]):
                for name in CHANGES:
                    part.pop(name, None)
            messages.append((queue, message))
    client.flushall()
    return messages


@pytest.mark.parametrize("name", ["plain.limited", "plain.routed", "plain.unknown"])
@pytest.mark.parametrize("options", OPTIONS)
def test_short_way_sends_what_celery_sends(
    app: Celery, server: RedisServer, name: str, options: str
) -> None:
    given = OPTIONS[options] | {"task_id": "0-1-2", "retry": False}
    task = app.tasks.get(name)
    assert is_plain(app, task, OPTIONS[options])
    with app.producer_or_acquire() as producer:
        if task is not None:
            task.apply_async([1], {"b": 3}, producer=producer, **given)
        else:
            app.send_task(name, [1], {"b": 3}, producer=producer, **given)
        expected = sent(server)
        send_plain(app, name, task, [1], {"b": 3}, producer, dict(given))
    assert expected or options == "routing"
    assert sent(server) == expected


@pytest.mark.parametrize("name", ["plain.expiring", "plain.custom"])
def test_task_of_its_own_kind_goes_the_long_way(app: Celery, name: str) -> None:
    assert not is_plain(app, app.tasks[name], {})


@pytest.mark.parametrize("option", ["expires", "countdown", "eta", "link", "stamped_headers"])
def test_option_that_is_not_plain_goes_the_long_way(app: Celery, option: str) -> None:
    assert not is_plain(app, None, {option: 1})


def test_wrong_arguments_are_refused_as_by_a_call(app: Celery) -> None:
    task = app.tasks["plain.limited"]
    with app.producer_or_acquire() as producer, pytest.raises(TypeError):
        send_plain(app, task.name, task, [], {"c": 1}, producer, {"task_id": "0"})
