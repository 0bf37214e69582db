"""What beat does with the answers of real brokers. On RabbitMQ, confirmed is done, and nothing else."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from celery_singleton_lock.beat.entries import BrokerUnavailable, Due, NotTaken
from celery_singleton_lock.beat.plan import run_id
from celery_singleton_lock.beat.publisher import Publisher
from celery_singleton_lock.core.headers import AGAIN
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer, TcpProxy

SLOT = datetime(2026, 11, 18, 12, tzinfo=UTC)
LATER = datetime(2026, 11, 18, 13, tzinfo=UTC)


class Beat:
    """A publisher with entries, and what it did."""

    def __init__(self, url: str, **config: Any) -> None:
        self.app = Celery("pub", broker=url, set_as_current=False)
        self.app.conf.update(config)
        self.refused: list[Due] = []
        self.entries: dict[str, ScheduleEntry] = {}
        self.publisher = Publisher(self.app, self.entries.__getitem__, self.refused.append)

    def add(self, name: str, args: Sequence[Any] = (), **options: Any) -> None:
        self.entries[name] = ScheduleEntry(
            name, "pub.noop", schedule=60, args=args, options=options, app=self.app
        )

    def dues(self, slot: datetime = SLOT) -> list[Due]:
        return [Due(name, slot) for name in self.entries]

    def ids(self, *names: str, slot: datetime = SLOT) -> Counter[str]:
        return Counter(run_id("pub", name, slot) for name in names)


@pytest.fixture
def start(rabbitmq: RabbitMQServer) -> Iterator[Callable[..., Beat]]:
    started: list[Beat] = []

    def start(url: str = rabbitmq.url, **config: Any) -> Beat:
        started.append(Beat(url, **config))
        return started[-1]

    yield start
    for beat in started:
        beat.publisher.close()


@pytest.fixture
def connection(rabbitmq: RabbitMQServer) -> Iterator[Connection]:
    """Without a queue or exchange of another test."""
    with Connection(rabbitmq.url) as connection:
        for queue in ("celery", "full", "other"):
            connection.default_channel.queue_delete(queue)
        for exchange in ("nowhere", "topics"):
            connection.default_channel.exchange_delete(exchange)
        yield connection


def taken_from(connection: Connection, queue: str = "celery") -> Counter[str]:
    """The ids of all that lay in a queue."""
    ids: Counter[str] = Counter()
    while (message := connection.default_channel.basic_get(queue, no_ack=True)) is not None:
        ids[message.headers["id"]] += 1
    return ids


def test_every_message_of_a_batch_is_confirmed(
    start: Callable[..., Beat], connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    beat = start()
    for number in range(1000):
        beat.add(f"e{number}", (number,))
    # A scheduler of another test, in this process, may have put an end to repeats.
    caplog.handler.filters.clear()
    with caplog.at_level(logging.INFO):
        beat.publisher.publish(beat.dues())
    assert taken_from(connection) == beat.ids(*beat.entries)
    assert caplog.text.count("slot_published") == 1000


def test_confirms_are_not_awaited_one_by_one(
    rabbitmq: RabbitMQServer, start: Callable[..., Beat], connection: Connection
) -> None:
    with TcpProxy(rabbitmq.port) as proxy:
        beat = start(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        for number in range(200):
            beat.add(f"e{number}")
        beat.publisher.prepare()
        proxy.delay(0.05)
        began = time.monotonic()
        beat.publisher.publish(beat.dues())
        assert time.monotonic() - began < 200 * 0.05
        beat.publisher.close()
    assert taken_from(connection) == beat.ids(*beat.entries)


def test_events_of_celery_are_counted_and_belong_to_nobody(
    start: Callable[..., Beat], connection: Connection
) -> None:
    beat = start(task_send_sent_event=True)
    for number in range(20):
        beat.add(f"e{number}")
    beat.publisher.publish(beat.dues())
    assert taken_from(connection) == beat.ids(*beat.entries)


def test_nothing_is_done_when_the_broker_dies_in_the_middle_of_a_batch(
    rabbitmq: RabbitMQServer, start: Callable[..., Beat], connection: Connection
) -> None:
    beat = start()
    for number in range(50):
        beat.add(f"e{number}")
    beat.add("killer", (BeatLazyFunc(rabbitmq.kill),))
    for number in range(50, 100):
        beat.add(f"e{number}")
    try:
        with pytest.raises(BrokerUnavailable):
            beat.publisher.publish(beat.dues())
        with pytest.raises(BrokerUnavailable):
            beat.publisher.prepare()
    finally:
        rabbitmq.restart()
    beat.add("killer")
    beat.publisher.publish(beat.dues())
    assert beat.refused == []
    with Connection(rabbitmq.url) as anew:
        assert taken_from(anew).keys() == beat.ids(*beat.entries).keys()


@pytest.mark.parametrize("queue", ["celery", "other"], ids=["when it confirms", "when it declares"])
def test_broker_that_goes_silent_is_not_waited_for_for_ever(
    rabbitmq: RabbitMQServer, start: Callable[..., Beat], connection: Connection, queue: str
) -> None:
    with TcpProxy(rabbitmq.port) as proxy:
        beat = start(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        beat.add("a")
        beat.publisher.publish(beat.dues())
        proxy.blackhole()
        beat.add("a", queue=queue)
        with pytest.raises(BrokerUnavailable):
            beat.publisher.publish(beat.dues(LATER))
    assert beat.refused == []


def test_what_a_full_queue_refuses_is_not_done_and_the_others_go_out_once(
    start: Callable[..., Beat], connection: Connection
) -> None:
    full = Queue(
        "full",
        Exchange("full"),
        "full",
        queue_arguments={"x-max-length": 1, "x-overflow": "reject-publish"},
    )
    beat = start(task_queues=[full, Queue("celery")])
    for name in "abc":
        beat.add(name)
    beat.add("first", queue="full")
    beat.publisher.publish(beat.dues())
    assert taken_from(connection) == beat.ids("a", "b", "c")
    beat.add("second", queue="full")
    for _ in range(2):
        with pytest.raises(NotTaken) as raised:
            beat.publisher.publish(beat.dues(LATER))
        assert {due.entry for due in raised.value.dues} == {"first", "second"}
    assert taken_from(connection) == beat.ids("a", "b", "c", slot=LATER)
    assert taken_from(connection, "full") == beat.ids("first")
    with pytest.raises(NotTaken):
        beat.publisher.publish(beat.dues(LATER))
    assert taken_from(connection, "full") == beat.ids("first", slot=LATER)
    beat.publisher.publish(beat.dues(LATER))
    assert taken_from(connection, "full") == beat.ids("second", slot=LATER)
    assert taken_from(connection) == Counter()
    assert beat.refused == []


def test_exchange_that_does_not_exist_holds_up_nobody_else(
    start: Callable[..., Beat], connection: Connection
) -> None:
    beat = start()
    for number in range(300):
        beat.add(f"e{number}")
        if number % 100 == 50:
            beat.add(f"lost{number}", exchange="nowhere", routing_key="x")
    others = [name for name in beat.entries if not name.startswith("lost")]
    beat.publisher.publish(beat.dues())
    assert {due.entry for due in beat.refused} == beat.entries.keys() - set(others)
    assert len(beat.refused) == 3
    assert taken_from(connection).keys() == beat.ids(*others).keys()
    # From now on it is known, and nobody's answer is lost with its channel.
    beat.publisher.publish(beat.dues(LATER))
    assert taken_from(connection) == beat.ids(*others, slot=LATER)
    assert len(beat.refused) == 6


def test_entry_is_published_again_once_its_exchange_is_there(
    start: Callable[..., Beat], connection: Connection
) -> None:
    beat = start()
    beat.add("lost", exchange="nowhere", routing_key="other")
    beat.publisher.publish(beat.dues())
    assert len(beat.refused) == 1
    Queue("other", Exchange("nowhere"), "other")(connection.default_channel).declare()
    beat.publisher.publish(beat.dues(LATER))
    assert len(beat.refused) == 1
    assert taken_from(connection, "other") == beat.ids("lost", slot=LATER)


def test_message_that_no_queue_takes_is_reported(
    start: Callable[..., Beat], connection: Connection
) -> None:
    Exchange("topics", "topic")(connection.default_channel).declare()
    beat = start()
    beat.add("a")
    beat.add("unheard", exchange="topics", routing_key="nobody.listens")
    beat.add("b")
    beat.publisher.publish(beat.dues())
    assert [due.entry for due in beat.refused] == ["unheard"]
    assert taken_from(connection) == beat.ids("a", "b")


def test_queue_that_was_deleted_is_declared_anew(
    start: Callable[..., Beat], connection: Connection
) -> None:
    beat = start()
    beat.add("a")
    beat.add("b", queue="other")
    beat.publisher.publish(beat.dues())
    connection.default_channel.queue_delete("other")
    beat.publisher.publish(beat.dues(LATER))
    assert beat.refused == []
    assert taken_from(connection) == beat.ids("a") + beat.ids("a", slot=LATER)
    assert taken_from(connection, "other") == beat.ids("b", slot=LATER)


def test_queue_that_is_declared_otherwise_holds_up_nobody_else(
    start: Callable[..., Beat], connection: Connection
) -> None:
    Queue("other", Exchange("other"), "other", max_length=5)(connection.default_channel).declare()
    beat = start()
    for number in range(100):
        beat.add(f"e{number}")
        if number % 10 == 5:
            beat.add(f"other{number}", queue="other")
    others = [name for name in beat.entries if not name.startswith("other")]
    beat.publisher.publish(beat.dues())
    assert taken_from(connection) == beat.ids(*others)
    assert {due.entry for due in beat.refused} == beat.entries.keys() - set(others)
    connection.default_channel.queue_delete("other")
    beat.publisher.publish(beat.dues(LATER))
    assert len(beat.refused) == 10
    assert sum(taken_from(connection, "other").values()) == 10


REFUSING: dict[str, list[tuple[str, ...]]] = {
    "a key that is no list": [("SET", "bad", "x")],
    "a key that is not ours": [("ACL", "SETUSER", "default", "resetkeys", "~celery*", "~_kombu*")],
}


@pytest.mark.parametrize("refusing", REFUSING)
def test_key_that_redis_will_not_have_holds_up_nobody_else(
    start: Callable[..., Beat], refusing: str
) -> None:
    with RedisServer() as server:
        client: Any = server.connect()
        for command in REFUSING[refusing]:
            client.execute_command(*command)
        beat = start(server.url)
        for name in "abc":
            beat.add(name)
        beat.add("x", queue="bad")
        for name in "def":
            beat.add(name)
        beat.publisher.publish(beat.dues())
        assert {due.entry for due in beat.refused} == {"x"}
        assert ids_in(client) == beat.ids(*"abcdef").keys()
        client.delete("celery")
        beat.publisher.publish(beat.dues(LATER))
        assert client.llen("celery") == 6
        assert len(beat.refused) == 2
        beat.publisher.close()


def test_others_are_sent_again_only_once_because_of_a_key_that_is_no_list_any_more(
    start: Callable[..., Beat],
) -> None:
    with RedisServer() as server:
        client: Any = server.connect()
        beat = start(server.url)
        for name in "abc":
            beat.add(name)
        beat.add("x", queue="bad")
        beat.publisher.publish(beat.dues())
        client.set("bad", "x")
        beat.publisher.publish(beat.dues())
        assert [due.entry for due in beat.refused] == ["x"]
        client.delete("celery")
        beat.publisher.publish(beat.dues(LATER))
        assert client.llen("celery") == 3
        client.delete("bad")
        beat.publisher.publish(beat.dues(LATER))
        assert client.llen("bad") == 1
        assert len(beat.refused) == 2
        beat.publisher.close()


def test_message_that_finds_no_queue_on_redis_is_reported(start: Callable[..., Beat]) -> None:
    with RedisServer() as server, Connection(server.url) as connection:
        client: Any = server.connect()
        beat = start(server.url)
        beat.add("a")
        beat.add("unheard", exchange="nowhere", routing_key="other")
        beat.add("b")
        beat.publisher.publish(beat.dues())
        assert [due.entry for due in beat.refused] == ["unheard"]
        assert ids_in(client) == beat.ids("a", "b").keys()
        assert client.llen("celery") == 2
        Queue("other", Exchange("nowhere"), "other")(connection.default_channel).declare()
        client.config_resetstat()
        beat.publisher.publish(beat.dues(LATER))
        assert len(beat.refused) == 1
        assert taken_from(connection, "other") == beat.ids("unheard", slot=LATER)
        # kombu's own look, and none of ours.
        assert client.info("commandstats")["cmdstat_smembers"]["calls"] == 1
        beat.publisher.publish_again([noted("1", "x", exchange="nobody"), noted("2", "other")])
        assert taken_from(connection, "other") == Counter(["2"])
        beat.publisher.close()


def test_redis_that_is_out_of_memory_refuses_all_and_is_away(start: Callable[..., Beat]) -> None:
    with RedisServer() as server:
        client: Any = server.connect()
        beat = start(server.url)
        beat.add("a")
        beat.publisher.publish(beat.dues())
        client.config_set("maxmemory", 1)
        with pytest.raises(BrokerUnavailable):
            beat.publisher.publish(beat.dues(LATER))
        client.config_set("maxmemory", 0)
        beat.publisher.publish(beat.dues(LATER))
        assert client.llen("celery") == 2
        assert beat.refused == []
        beat.publisher.close()


def ids_in(client: Any) -> set[str]:
    return {json.loads(each)["headers"]["id"] for each in client.lrange("celery", 0, -1)}


def noted(run: str, queue: str, exchange: str = "") -> dict[str, Any]:
    """A message as the record of its run has it."""
    return {
        "body": "[[], {}, {}]",
        "headers": {"id": run, "task": "pub.noop"},
        "properties": {"correlation_id": run},
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "exchange": exchange,
        "routing_key": queue,
    }


def test_run_that_is_published_again_goes_where_it_came_from_and_a_bad_one_stops_nobody(
    start: Callable[..., Beat], connection: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    connection.default_channel.queue_declare("other", durable=True, auto_delete=False)
    beat = start()
    beat.publisher.publish_again(
        [
            noted("1", "other"),
            noted("2", "deleted queue"),
            noted("3", "other", exchange="nowhere"),
            noted("4", "other"),
        ]
    )
    first = connection.default_channel.basic_get("other", no_ack=True)
    assert (first.headers["id"], first.headers[AGAIN]) == ("1", True)
    assert taken_from(connection, "other") == Counter(["4"])
    refused = [record.getMessage() for record in caplog.records if "run_refused" in record.message]
    assert [text.split()[1].strip(":") for text in refused] == ["run=2", "run=3"]


def test_run_is_not_published_again_while_the_broker_is_away(
    rabbitmq: RabbitMQServer, start: Callable[..., Beat]
) -> None:
    with TcpProxy(rabbitmq.port) as proxy:
        beat = start(f"amqp://guest:guest@127.0.0.1:{proxy.port}//")
        beat.publisher.prepare()
        proxy.refuse()
        proxy.cut()
        with pytest.raises(BrokerUnavailable):
            beat.publisher.publish_again([noted("1", "celery")])
