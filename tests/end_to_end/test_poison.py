"""Real workers that are sent what no worker can run: all of it is kept, and they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu.connection import Connection

from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer, TcpProxy
from tests.end_to_end.beats import until

QUEUE = "dead-letters"
CONFIG = """
    import os
    import redis
    from celery import Celery
    from celery_singleton_lock.signals import run_dead_lettered
    from celery_singleton_lock.worker.poison import install

    app = Celery("proj", broker=os.environ["BROKER"])
    app.conf.singleton_lock_url = "memory://"
    app.conf.broker_connection_retry_on_startup = True
    app.conf.broker_transport_options = {"visibility_timeout": 600}
    app.conf.worker_cancel_long_running_tasks_on_connection_loss = True
    install(app)
    install(app)
    ran = redis.Redis.from_url(os.environ["RAN"])

    @app.task(name="proj.work")
    def work(number):
        ran.lpush("ran", number)

    if os.environ.get("AFTER_DEPLOY"):
        @app.task(name="proj.gone", bind=True)
        def gone(self, number):
            ran.lpush("ran", self.request.get("singleton_generation"))

    @run_dead_lettered.connect
    def tell(letter):
        ran.lpush("told", letter.id)
"""
GOOD = {"id": "1", "task": "proj.work"}
DEEP = "[" * 100_000

# Headers, body, content type, content encoding, and the reason that is expected.
Poison = tuple[dict[str, Any], Any, str | None, str | None, str]


def poison(
    body: Any = b'[[1], {}, {"callbacks": null}]',
    reason: str = "invalid",
    kind: str | None = "application/json",
    encoding: str | None = "utf-8",
    without: str = "",
    **headers: Any,
) -> Poison:
    if not isinstance(body, bytes):
        body = json.dumps(body).encode()
    merged = {name: value for name, value in {**GOOD, **headers}.items() if name != without}
    return merged, body, kind, encoding, reason


def old(body: dict[str, Any]) -> Poison:
    return {}, json.dumps(body).encode(), "application/json", "utf-8", "invalid"


KINDS: dict[str, Poison] = {
    "broken json": poison(b"[[1], {", "undecodable"),
    "no body": poison(b""),
    "too deep": poison(DEEP.encode(), "undecodable"),
    "bytes that are no text": poison(b"\xff\xfe\x00", "undecodable"),
    "type that is not accepted": poison(b"\x80\x04.", "undecodable", "application/x-python-serialize"),
    "type that is not known": poison(b"?", "undecodable", "application/x-unheard-of", "utf-8"),
    "encoding that is not known": poison(b"?", "undecodable", "text/plain", "no-such"),
    "broken gzip": poison(b"\x1f\x8b...", "undecodable", compression="application/x-gzip"),
    "compression that is not known": poison(b"..", "undecodable", compression="application/x-none"),
    "task that is not known": poison(reason="unknown_task", task="proj.gone"),
    "no task": poison(without="task"),
    "task that is a list": poison(task=["proj.work"]),
    "no id": poison(without="id"),
    "no id, and a task that is not known": poison(without="id", task="proj.gone"),
    "id that is null": poison(id=None),
    "id that is empty": poison(id=""),
    "id that is a number": poison(id=7),
    "id that is a list": poison(id=[7]),
    "kwargs that are a list": poison([[1], [], {}]),
    "kwargs that are null": poison([[1], None, {}]),
    "kwargs that are a text": poison([[1], "ab", {}]),
    "args that are a text": poison(["ab", {}, {}]),
    "args that are null": poison([None, {}, {}]),
    "args that are a mapping": poison([{"a": 1}, {}, {}]),
    "embed that is a list": poison([[1], {}, [1]]),
    "body of two": poison([[1], {}]),
    "body that is a mapping": poison({"a": 1, "b": 2, "c": 3}),
    "body that is a number": poison(5),
    "body that is null": poison(b"null"),
    "body that is a text": poison("abc"),
    "body that is an empty list": poison([]),
    "time limit that is a number": poison(timelimit=5),
    "time limit of texts": poison(timelimit=["a", "b"]),
    "eta that is no time": poison(eta="soon"),
    "expiry that is no time": poison(expires=[1]),
    "older protocol without id": old({"task": "proj.work", "args": [1], "kwargs": {}}),
    "older protocol with kwargs that are a list": old(
        {"task": "proj.work", "id": "1", "args": [1], "kwargs": [1]}
    ),
    "something else altogether": old({"hello": "world"}),
}


class Worker:
    """One `celery worker` on a broker, and what it ran; ended by its pid."""

    def __init__(self, place: Path, broker_url: str, ran_url: str, *options: str) -> None:
        (place / "proj.py").write_text(textwrap.dedent(CONFIG))
        self.log = place / "worker.log"
        self._place, self._options = place, options
        self._environment = os.environ | {"BROKER": broker_url, "RAN": ran_url}
        self.process = self.start()

    def start(self, **environment: str) -> subprocess.Popen[bytes]:
        command = "celery -A proj worker -l INFO --without-gossip --without-mingle"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command.split(), *self._options],
                cwd=self._place,
                env=self._environment | environment,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def says(self, text: str) -> bool:
        return text in self.log.read_text()

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)


@pytest.fixture
def ran() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(params=["redis", "rabbitmq"])
def broker(request: pytest.FixtureRequest) -> Iterator[RedisServer | RabbitMQServer]:
    if request.param == "redis":
        with RedisServer() as server:
            yield server
        return
    # One takes five seconds to start: the one of all tests, which is left as it was found.
    rabbitmq: RabbitMQServer = request.getfixturevalue("rabbitmq")
    forget(rabbitmq.url)
    yield rabbitmq
    forget(rabbitmq.url)


def app_on(url: str) -> Celery:
    return Celery("client", broker=url, set_as_current=False)


def send(url: str, poisons: list[tuple[str, Poison]], good: int = 0) -> None:
    """To the default queue, each with its number and its kind; good ones in between."""
    app = app_on(url)
    with Connection(url) as connection:
        channel = connection.default_channel
        app.amqp.queues["celery"](channel).declare()
        for number, (name, (headers, body, kind, encoding, _)) in enumerate(poisons):
            marked = {**headers, "number": number, "kind": name}
            if headers.get("id") == GOOD["id"]:
                marked["id"] = f"run-{number}"
            prepared = channel.prepare_message(body, 0, kind, encoding, marked, {"delivery_mode": 2})
            channel.basic_publish(prepared, exchange="celery", routing_key="celery")
            if number < good:
                app.send_task("proj.work", [number])
    app.close()


def letters_in(url: str) -> list[Letter]:
    """All letters, which are taken from the queue."""
    with Connection(url) as connection:
        channel = connection.default_channel
        found = []
        while (message := channel.basic_get(QUEUE, no_ack=True)) is not None:
            found.append(Letter.from_message(channel.message_to_python(message)))
        return found


def forget(url: str) -> None:
    with Connection(url) as connection:
        for queue in (QUEUE, "celery"):
            connection.default_channel.queue_delete(queue)


def make_full(url: str) -> None:
    """No letter gets into the queue until it is deleted."""
    forget(url)
    full = {"x-max-length": 0, "x-overflow": "reject-publish"}
    with Connection(url) as connection:
        connection.default_channel.queue_declare(
            queue=QUEUE, durable=True, auto_delete=False, arguments=full
        )


def length(url: str, queue: str = QUEUE) -> int:
    with Connection(url) as connection:
        try:
            return int(
                connection.default_channel.queue_declare(queue=queue, passive=True).message_count
            )
        except connection.channel_errors:
            return 0


def runs(ran: RedisServer) -> int:
    client: Any = ran.connect()
    return int(client.llen("ran"))


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path, ran: RedisServer) -> Iterator[Start]:
    workers: list[Worker] = []

    def start_worker(broker_url: str, *options: str) -> Worker:
        workers.append(Worker(tmp_path, broker_url, ran.url, *options))
        return workers[-1]

    yield start_worker
    for worker in workers:
        worker.end()


def some(count: int) -> list[tuple[str, Poison]]:
    kinds = list(KINDS.items())
    return [kinds[number % len(kinds)] for number in range(count)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_1000_poisoned_messages_of_all_kinds_are_all_kept_and_the_worker_goes_on(
    broker: RedisServer | RabbitMQServer, ran: RedisServer, start: Start, pool: str
) -> None:
    worker = start(broker.url, "-P", pool, "-c", "2")
    send(broker.url, some(1000), good=100)
    until(lambda: (length(broker.url), runs(ran)) >= (1000, 100), within=60)
    app_on(broker.url).send_task("proj.work", ["last"])
    until(lambda: runs(ran) == 101)
    assert worker.process.poll() is None
    letters = letters_in(broker.url)
    assert Counter(each.original.headers["number"] for each in letters) == Counter(range(1000))
    expected = [KINDS[each.original.headers["kind"]][-1] for each in letters]
    wrong = [
        (each.original.headers["kind"], each.reason, each.exception)
        for each, reason in zip(letters, expected, strict=True)
        if each.reason != reason
    ]
    assert wrong == []
    assert {each.queue for each in letters} == {"celery"}
    assert length(broker.url, "celery") == 0
    assert not worker.says("Restoring")


@pytest.mark.timeout(180)
def test_message_stays_while_its_letter_cannot_be_sent_and_goes_when_it_can(
    ran: RedisServer, start: Start, rabbitmq: RabbitMQServer
) -> None:
    url = rabbitmq.url
    make_full(url)
    worker = start(url, "-c", "1")
    send(url, some(40), good=40)
    # More than are prefetched: those that wait do not keep others from being run.
    until(lambda: runs(ran) == 40, within=60)
    assert worker.says("poison_kept")
    assert worker.log.read_text().count("poison_kept") == 1
    with Connection(url) as connection:
        connection.default_channel.queue_delete(QUEUE)
    until(lambda: length(url) == 40, within=90)
    assert {each.original.headers["number"] for each in letters_in(url)} == set(range(40))
    until(lambda: worker.says("poison_all_sent"))


def test_worker_that_would_execute_the_dead_letters_does_not_start(
    start: Start, broker: RedisServer | RabbitMQServer
) -> None:
    worker = start(broker.url, "-Q", "celery,dead-letters")
    assert worker.process.wait(60) != 0
    assert worker.says("would execute the dead letters")


@pytest.mark.timeout(180)
def test_worker_killed_at_its_poison_loses_none_and_repeats_have_the_same_id(
    start: Start, rabbitmq: RabbitMQServer
) -> None:
    forget(rabbitmq.url)
    send(rabbitmq.url, some(600))
    worker = start(rabbitmq.url, "-P", "solo")
    until(lambda: length(rabbitmq.url) >= 50)
    worker.process.kill()
    worker.process.wait(10)
    assert length(rabbitmq.url) < 600, "it was killed too late to tell"
    worker.start()
    until(lambda: length(rabbitmq.url) >= 600 and length(rabbitmq.url, "celery") == 0, within=60)
    letters = letters_in(rabbitmq.url)
    assert {each.original.headers["number"] for each in letters} == set(range(600))
    assert len({each.id for each in letters}) == 600


@pytest.mark.timeout(180)
def test_message_whose_letter_cannot_be_sent_is_still_the_brokers(
    start: Start, rabbitmq: RabbitMQServer
) -> None:
    make_full(rabbitmq.url)
    send(rabbitmq.url, some(20))
    worker = start(rabbitmq.url, "-P", "solo")
    until(lambda: worker.says("poison_kept") and length(rabbitmq.url, "celery") == 0)
    worker.process.kill()
    worker.process.wait(10)
    until(lambda: length(rabbitmq.url, "celery") == 20)
    forget(rabbitmq.url)


def envelope(**changes: Any) -> str:
    place = {"exchange": "", "routing_key": "celery"}
    properties = {"delivery_tag": "x", "body_encoding": "base64", "delivery_info": place}
    whole = {"body": "e30=", "properties": properties, "headers": {}}
    return json.dumps(whole | changes)


BROKEN_ENVELOPES = [
    "not json",
    "",
    "[]",
    "7",
    "null",
    '{"a": 1}',
    envelope(properties={}),
    envelope(properties={"delivery_tag": "x"}),
    envelope(body=5),
    envelope(body="!", properties={"delivery_tag": "x", "body_encoding": "base64"}),
    envelope(body="?", properties={"delivery_tag": "x", "body_encoding": "no-such"}),
    envelope(headers=[1]),
]


@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_broken_envelope_on_redis_is_kept_and_does_not_end_the_worker(
    ran: RedisServer, start: Start, pool: str
) -> None:
    with RedisServer() as broker:
        worker = start(broker.url, "-P", pool, "-c", "1")
        client: Any = broker.connect()
        for number, broken in enumerate(BROKEN_ENVELOPES):
            client.lpush("celery", broken)
            app_on(broker.url).send_task("proj.work", [number])
        count = len(BROKEN_ENVELOPES)
        until(lambda: (length(broker.url), runs(ran)) >= (count, count))
        letters = letters_in(broker.url)
        assert [each.original.body.decode() for each in letters] == BROKEN_ENVELOPES
        assert {(each.reason, each.queue) for each in letters} == {("undecodable", "celery")}
        assert worker.process.poll() is None
        assert client.hlen("unacked") == 0
        worker.end()


def test_task_that_was_not_known_during_a_deploy_is_replayed_after_it(
    broker: RedisServer | RabbitMQServer, ran: RedisServer, start: Start
) -> None:
    app = app_on(broker.url)
    app.conf.singleton_lock_url = "memory://"
    worker = start(broker.url, "-P", "solo", "-E")
    events: list[Any] = []
    with app.connection_for_read() as connection:
        handlers = {"task-dead-lettered": events.append}
        receiver = app.events.Receiver(connection, handlers=handlers)
        with receiver.consumer_context() as (own_connection, *_):
            own_connection.drain_events(timeout=30)  # a heartbeat: from now on none is missed
            app.send_task("proj.gone", [1], task_id="new-task")
            until(lambda: length(broker.url) == 1)
            while not events:
                own_connection.drain_events(timeout=20)
    letters = dead_letters_of(app)
    letter = letters.list()[0]
    assert (events[0]["uuid"], events[0]["letter"]) == ("new-task", letter.id)
    client: Any = ran.connect()
    assert client.lrange("told", 0, -1) in ([letter.id], [letter.id.encode()])
    worker.end()
    worker.start(AFTER_DEPLOY="1")
    assert [each.why_not for each in letters.replay(ids=[letter.id])] == [""]
    letters.close()
    until(lambda: runs(ran) == 1)
    assert client.lrange("ran", 0, -1) in (["1"], [b"1"]), "as its first replay"
    assert length(broker.url) == 0


@pytest.mark.timeout(180)
def test_connection_cut_while_poison_is_kept_loses_and_doubles_none(
    ran: RedisServer, start: Start, rabbitmq: RabbitMQServer
) -> None:
    make_full(rabbitmq.url)
    with TcpProxy(rabbitmq.port) as proxy:
        worker = start(rabbitmq.url.replace(str(rabbitmq.port), str(proxy.port)), "-P", "solo")
        send(rabbitmq.url, some(10), good=1)
        until(lambda: worker.says("poison_kept") and runs(ran) == 1)
        proxy.cut()
        until(lambda: worker.log.read_text().count("poison_kept") == 2, within=60)
        app_on(rabbitmq.url).send_task("proj.work", ["after"])
        until(lambda: runs(ran) == 2)
        with Connection(rabbitmq.url) as connection:
            connection.default_channel.queue_delete(QUEUE)
        until(lambda: worker.says("poison_all_sent"), within=60)
        worker.end()
    numbers = Counter(each.original.headers["number"] for each in letters_in(rabbitmq.url))
    assert numbers == Counter(range(10))
    assert length(rabbitmq.url, "celery") == 0
    forget(rabbitmq.url)
