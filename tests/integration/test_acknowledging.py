"""Messages of finished runs are acknowledged together, on Redis: none late, none lost, none twice."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from celery import Celery
from kombu.transport.redis import Channel

from celery_singleton_lock import SingletonTask
from celery_singleton_lock.broker.kept_client import keep_client
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy
from celery_singleton_lock.worker import acknowledging
from celery_singleton_lock.worker.acknowledging import Acknowledging
from celery_singleton_lock.worker.attempt import Attempt
from celery_singleton_lock.worker.execution import Execution
from celery_singleton_lock.worker.request import COUNTS
from tests.end_to_end.beats import until

from .workers import LEAVES_CONNECTIONS, define, outcome_of, queued, unacknowledged, working

pytestmark = LEAVES_CONNECTIONS


@pytest.fixture
def app(app: Celery) -> Celery:
    app.conf.worker_prefetch_multiplier = 8
    return app


@pytest.fixture
def waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a message waits until there are enough."""
    monkeypatch.setattr(acknowledging, "LONGEST_S", 600.0)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages were acknowledged at a time."""
    sizes: list[int] = []
    acknowledge = Acknowledging._acknowledge

    def counted(self: Acknowledging, tags: list[str]) -> None:
        acknowledge(self, tags)
        sizes.append(len(tags))

    monkeypatch.setattr(Acknowledging, "_acknowledge", counted)
    return sizes


def define_body(app: Celery) -> tuple[Any, list[int]]:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", ignore_result=True)
    def body(number: int) -> None:
        calls.append(number)

    return body, calls


def drain(server: RedisServer, app: Celery, count: int) -> None:
    body, calls = define_body(app)
    for number in range(count):
        body.delay(number)
    with working(app, pool="solo", concurrency=1):
        until(lambda: unacknowledged(server) == 0 == queued(server) and len(calls) == count)
    assert sorted(calls) == list(range(count))


def test_messages_are_acknowledged_together(
    server: RedisServer, app: Celery, batches: list[int]
) -> None:
    drain(server, app, 70)
    assert sum(batches) == 70
    assert len(batches) <= 35


@pytest.mark.usefixtures("waits_for_ever")
def test_message_that_waits_does_not_keep_the_worker_from_another(
    server: RedisServer, app: Celery
) -> None:
    app.conf.worker_prefetch_multiplier = 1
    body, calls = define_body(app)
    with working(app, pool="solo", concurrency=1):
        for number in range(5):
            body.delay(number)
        until(lambda: len(calls) == 5)
        assert unacknowledged(server) == 5
    assert unacknowledged(server) == 0 == queued(server)


@pytest.mark.parametrize("acks_late", [True, False])
def test_end_that_was_not_waited_for_is_recorded_before_the_message_goes(
    server: RedisServer, app: Celery, acks_late: bool
) -> None:
    """Also where nothing follows, and the store was away in between."""
    with RedisServer() as locks:
        # Longer than a busy machine takes to start it again.
        app.conf.update(singleton_lock_url=locks.url, singleton_lock_ttl=30)
        calls: list[int] = []

        @define(app, base=SingletonTask, name="t", ignore_result=True, acks_late=acks_late)
        def body(number: int) -> None:
            if number == 2:
                locks.kill()
            calls.append(number)

        with working(app, pool="solo", concurrency=1):
            body.delay(1)
            run = body.delay(2).id
            until(lambda: calls == [1, 2])
            if acks_late:
                assert unacknowledged(server) >= 1
            locks.start()
            until(lambda: outcome_of(app, run) == "succeeded")
            until(lambda: unacknowledged(server) == 0 == queued(server))
        assert calls == [1, 2]


def test_run_begins_after_the_end_of_the_one_before(server: RedisServer, app: Celery) -> None:
    """The same job, again and again: the end of a run frees it for the next, waited for or not."""
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", ignore_result=True, lock_key="one")
    def body(number: int) -> None:
        calls.append(number)

    for number in range(200):
        body.delay(number)
    with working(app, pool="solo", concurrency=1):
        until(lambda: queued(server) == 0 == unacknowledged(server))
    assert calls == list(range(200))


@pytest.mark.usefixtures("waits_for_ever")
def test_worker_that_stops_acknowledges_what_waits(server: RedisServer, app: Celery) -> None:
    body, calls = define_body(app)
    with working(app, pool="solo", concurrency=1):
        run = body.delay(1).id
        until(lambda: outcome_of(app, run) == "succeeded")
        assert unacknowledged(server) == 1
    assert unacknowledged(server) == 0 == queued(server)
    assert calls == [1]


@pytest.mark.usefixtures("waits_for_ever")
def test_what_waits_when_the_broker_is_lost_is_told_to_be_done(
    server: RedisServer, app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    before = COUNTS["copy"]
    with TcpProxy(server.port) as proxy:
        app.conf.broker_url = f"redis://127.0.0.1:{proxy.port}/0"
        body, calls = define_body(app)
        with working(app, pool="solo", concurrency=1):
            run = body.delay(1).id
            until(lambda: outcome_of(app, run) == "succeeded")
            assert unacknowledged(server) == 1
            proxy.refuse()
            proxy.cut()
            until(lambda: "messages_not_acknowledged count=1" in caplog.text)
            proxy.heal()
            until(lambda: COUNTS["copy"] > before, within=30)
    assert unacknowledged(server) == 0 == queued(server)
    assert calls == [1]


@pytest.mark.usefixtures("waits_for_ever")
def test_what_waits_when_the_connection_breaks_is_acknowledged_over_the_next(
    server: RedisServer, app: Celery
) -> None:
    body, calls = define_body(app)
    client: Any = server.connect()
    with working(app, pool="solo", concurrency=1):
        run = body.delay(1).id
        until(lambda: outcome_of(app, run) == "succeeded")
        assert unacknowledged(server) == 1
        client.client_kill_filter(_type="normal", skipme=True)
        until(lambda: unacknowledged(server) == 0)
    assert queued(server) == 0
    assert calls == [1]


def test_one_client_writes_to_the_broker_about_all_messages(
    server: RedisServer, app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    create: Any = Channel._create_client

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        made.append(1)
        return create(self, *args, **options)

    body, calls = define_body(app)
    for number in range(50):
        body.delay(number)
    monkeypatch.setattr(Channel, "_create_client", counted)
    with working(app, pool="solo", concurrency=1):
        until(lambda: unacknowledged(server) == 0 == queued(server) and len(calls) == 50)
    assert len(made) < 30


def test_worker_whose_broker_need_not_remember_acknowledges_nothing(
    server: RedisServer, app: Celery
) -> None:
    app.conf.broker_transport_options = {"ack_emulation": False}
    drain(server, app, 3)


def test_client_is_kept_for_as_long_as_the_channel_has_its_connections(app: Celery) -> None:
    with app.connection() as connection:
        channel = connection.default_channel
        keep_client(channel)
        keep_client(channel)
        with channel.conn_or_acquire() as client, channel.conn_or_acquire() as again:
            assert again is client
            assert client.set("a", 1)
        with channel.conn_or_acquire(client="given") as given:
            assert given == "given"
        # As after a fork, and when the broker has closed them.
        channel._disconnect_pools()
        with channel.conn_or_acquire() as other:
            assert other is not client
            assert other.connection_pool is channel.pool
            assert other.get("a") == b"1"


def test_task_leaves_nothing_to_the_garbage_collector(server: RedisServer, app: Celery) -> None:
    body, calls = define_body(app)
    for number in range(20):
        body.delay(number)
    gc.collect()
    before = {id(each) for each in attempts()}
    gc.disable()
    try:
        with working(app, pool="solo", concurrency=1):
            until(lambda: unacknowledged(server) == 0 == queued(server) and len(calls) == 20)
            # The last one may still be told of.
            assert sum(id(each) not in before for each in attempts()) <= 2
    finally:
        gc.enable()


def attempts() -> list[object]:
    """Also those that tests before this one have left, in what failed."""
    return [each for each in gc.get_objects() if type(each) in (Attempt, Execution)]
