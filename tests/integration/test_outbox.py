"""The outbox on real databases and brokers: what is committed is published, and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from celery import chain, chord, group, signals
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from celery_singleton_lock import ConfigurationError, outbox
from celery_singleton_lock.core.errors import BrokerUnavailable
from celery_singleton_lock.outbox import OutboxRow
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.outbox import claiming
from celery_singleton_lock.recovery.outbox.lanes import LANES_AT_ONCE, lane_of
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer, TcpProxy

from .ledgers import DATABASES, empty_ledger, url_of
from .outboxes import Shop


@pytest.fixture(params=DATABASES)
def database_url(request: pytest.FixtureRequest) -> str:
    url = url_of(request.param, request)
    make_tables(url)
    return url


@pytest.fixture
def sqlite_url(request: pytest.FixtureRequest) -> str:
    """For what does not depend on the database."""
    url = url_of("sqlite", request)
    metadata = sa.MetaData()
    outbox.add_tables(metadata)
    engine = sa.create_engine(url)
    metadata.create_all(engine)
    engine.dispose()
    return url


def make_tables(url: str) -> None:
    ledger = empty_ledger(url)
    ledger.schema.upgrade()
    ledger.close()


Open = Callable[..., Shop]


@pytest.fixture
def open_shop(valkey: RedisServer) -> Iterator[Open]:
    opened: list[Shop] = []

    def open_shop(database_url: str, broker_url: str = valkey.url, **config: Any) -> Shop:
        opened.append(Shop(database_url, broker_url, **config))
        return opened[-1]

    yield open_shop
    for shop in opened:
        shop.close()


def until(fact: Callable[[], Any], within: float = 20.0) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.01)


# What is published, and what not


def test_what_is_committed_is_published_once_and_what_is_rolled_back_never(
    open_shop: Open, database_url: str
) -> None:
    shop = open_shop(database_url)
    shop.send(1, 2, 3)
    with Session(shop.engine) as session:
        outbox.send(session, shop.add, (4,))
        session.flush()
        session.rollback()
    assert shop.drain() == 3
    assert shop.drain() == 0
    assert sorted(shop.received()) == [1, 2, 3]
    assert {state for _, state in shop.states()} == {"published"}


def test_id_of_the_task_is_that_of_the_result_that_send_returned(
    open_shop: Open, sqlite_url: str, valkey: RedisServer
) -> None:
    shop = open_shop(sqlite_url)
    with shop.transaction() as session:
        ids = [shop.add.apply_async_on_commit(session, (number,)).id for number in range(5)]
        ids.append(outbox.send(session, shop.add.s(5), task_id="mine").id)
    shop.drain()
    with Connection(valkey.url) as connection:
        queue = shop.app.amqp.queues[shop.queue](connection.default_channel)
        found = [queue.get(no_ack=True).headers["id"] for _ in ids]
    assert sorted(found) == sorted(ids)
    assert ids[-1] == "mine"


def test_applications_in_one_database_publish_their_own(open_shop: Open, database_url: str) -> None:
    one, other = open_shop(database_url), open_shop(database_url)
    one.send(1)
    other.send(2)
    assert one.drain() == 1
    assert one.received() == [1]
    assert other.drain() == 1
    assert other.received() == [2]


def test_relays_share_the_work_and_publish_nothing_twice(open_shop: Open, database_url: str) -> None:
    shop = open_shop(database_url)
    shop.send(*range(600))
    both_are_at_it = threading.Barrier(2, timeout=20)
    counts: list[int] = []

    def drain() -> None:
        waited: list[str] = []

        def wait_for_the_other(step: str) -> None:
            if step == "claimed" and not waited:
                waited.append(step)
                both_are_at_it.wait()

        relay = shop.relay(on_step=wait_for_the_other)
        counts.append(relay.drain())
        relay.close()

    threads = [threading.Thread(target=drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(counts) == 600
    assert min(counts) >= 600 // 16
    assert sorted(shop.received()) == list(range(600))


def test_relay_that_lost_its_lanes_records_nothing(open_shop: Open, sqlite_url: str) -> None:
    shop = open_shop(sqlite_url)
    shop.send(1)
    ahead: list[int] = []

    def fail_and_sleep_too_long(step: str) -> None:
        if step == "sending":
            raise ValueError("as if the row were refused")
        if step == "published":
            with shop.engine.begin() as connection:
                connection.execute(sa.update(outbox.OutboxLaneRow).values(until=None))
            ahead.append(shop.drain())

    relay = shop.relay(on_step=fail_and_sleep_too_long)
    relay.turn()
    relay.close()
    assert ahead == [1]
    assert shop.states() == [(1, "published")], "what the other recorded"
    assert shop.received() == [1]


# In which order


def test_calls_of_a_key_are_published_in_the_order_in_which_they_were_committed(
    open_shop: Open, database_url: str
) -> None:
    shop = open_shop(database_url)
    first_has_written, order = threading.Event(), list[str]()

    def second() -> None:
        first_has_written.wait(20)
        try:
            shop.send(2, key="order:1")
        except OperationalError:  # SQLite: the one writer took too long
            shop.send(2, key="order:1")
        order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with Session(shop.engine) as session:
        outbox.send(session, shop.add, (1,), key="order:1")
        session.flush()
        first_has_written.set()
        thread.join(0.5)
        assert thread.is_alive(), "did not wait for the first"
        outbox.send(session, shop.add, (3,), key="order:1")
        session.commit()
        order.append("first")
    thread.join()
    shop.drain()
    assert shop.received() == [1, 3, 2]


def test_transactions_of_different_keys_do_not_wait_for_each_other(
    open_shop: Open, postgres: Any, mariadb: Any
) -> None:
    for url in (postgres.url, mariadb.url):
        make_tables(url)
        shop = open_shop(url)
        with Session(shop.engine) as session:
            outbox.send(session, shop.add, (1,), key="order:1")
            session.flush()
            shop.send(2, key="order:2")
            session.commit()
        shop.drain()
        assert sorted(shop.received()) == [1, 2]


def test_keys_keep_their_order_through_many_batches_and_two_relays(
    open_shop: Open, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "BATCH", 4 * LANES_AT_ONCE)
    shop = open_shop(database_url)
    for begin in range(0, 200, 50):
        with shop.transaction() as session:
            for number in range(begin, begin + 50):
                outbox.send(session, shop.add, (number,), key=f"k{number % 5}")
    threads = [threading.Thread(target=shop.drain) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    received = shop.received()
    assert sorted(received) == list(range(200))
    for key in range(5):
        assert [n for n in received if n % 5 == key] == list(range(key, 200, 5))


# When the broker will not


def test_broker_that_is_away_costs_nothing_but_time(
    open_shop: Open, database_url: str, valkey: RedisServer
) -> None:
    with TcpProxy(valkey.port) as proxy:
        shop = open_shop(database_url, f"redis://127.0.0.1:{proxy.port}/0")
        proxy.refuse()
        shop.send(1, 2)
        relay = shop.relay()
        with pytest.raises(BrokerUnavailable):
            relay.drain()
        assert [state for _, state in shop.states()] == ["pending", "pending"]
        proxy.heal()
        assert relay.drain() == 2
        relay.close()
        assert sorted(shop.received()) == [1, 2]


def test_row_that_the_broker_refuses_holds_up_its_key_and_nobody_else_and_becomes_a_letter(
    open_shop: Open, sqlite_url: str, rabbitmq: RabbitMQServer
) -> None:
    letters = f"letters-{time.time_ns()}"
    shop = open_shop(
        sqlite_url, rabbitmq.url, singleton_outbox_max_tries=2, singleton_dead_letter_queue=letters
    )
    shop.send(1, key="a")
    shop.send(2, key="a", exchange="nowhere", routing_key="x")
    shop.send(3, key="a")
    shop.send(4, key="b")
    shop.send(5)
    shop.drain()
    assert sorted(shop.received()) == [1, 4, 5]
    assert dict(shop.states()) == {
        1: "published", 2: "held", 3: "pending", 4: "published", 5: "published",
    }  # fmt: skip
    with shop.running_relay():
        until(lambda: dict(shop.states())[3] == "published")
    assert dict(shop.states())[2] == "dead"
    assert shop.received() == [3]
    [letter] = dead_letters_of(shop.app).list()
    assert (letter.reason, letter.task, letter.attempts) == ("unpublished", "shop.add", 2)
    assert letter.original.exchange == "nowhere"
    with Connection(rabbitmq.url) as connection:
        connection.default_channel.queue_delete(letters)


def test_lanes_in_which_all_waits_keep_nobody_from_the_others(
    open_shop: Open, database_url: str
) -> None:
    shop = open_shop(database_url)
    in_lanes = {lane_of(f"k{number}"): f"k{number}" for number in range(200)}
    *stuck, free = in_lanes.values()
    for key in stuck:
        shop.send(1, key=key, exchange="nowhere", routing_key="x")
    shop.drain()
    later = datetime.now(UTC) + timedelta(hours=1)
    with shop.engine.begin() as connection:
        held = sa.update(OutboxRow).where(OutboxRow.prefix == shop.prefix)
        connection.execute(held.values(retry_at=later))
    for key in stuck:
        shop.send(2, key=key)
    shop.send(3, key=free)
    relay = shop.relay()
    assert relay.turn() == 1
    relay.close()
    assert shop.received() == [3]


def test_message_that_redis_would_drop_unseen_is_refused(
    open_shop: Open, sqlite_url: str, valkey: RedisServer
) -> None:
    name = f"topic-{time.time_ns()}"
    bound = Queue(name, Exchange(name, "topic"), "heard.#")
    shop = open_shop(sqlite_url, task_queues=[bound])
    shop.send(1, queue=name, routing_key="heard.of")
    shop.send(2, exchange=name, routing_key="unheard.of")
    shop.send(3, exchange="nowhere", routing_key="x")
    shop.drain()
    assert shop.received(name) == [1]
    assert dict(shop.states()) == {1: "published", 2: "held", 3: "held"}


def test_receivers_and_flower_are_told_when_it_is_published(
    open_shop: Open, sqlite_url: str, valkey: RedisServer
) -> None:
    shop = open_shop(sqlite_url, task_send_sent_event=True)
    told: list[Any] = []

    def after(sender: str, body: Any, headers: Any, **_: Any) -> None:
        told.append((sender, body[0], headers["id"]))

    # As Flower gets them: by Redis's own publish and subscribe.
    heard = valkey.connect().pubsub(ignore_subscribe_messages=True)
    heard.psubscribe("*celeryev*")
    heard.get_message(timeout=5)
    signals.after_task_publish.connect(after)
    try:
        shop.send(1, task_id="mine")
        assert told == []
        shop.drain()
    finally:
        signals.after_task_publish.disconnect(after)
    assert told == [("shop.add", [1], "mine")]
    message = heard.get_message(timeout=5)
    heard.close()
    assert message is not None
    event = json.loads(base64.b64decode(json.loads(message["data"])["body"]))
    assert event["type"] == "task-sent"
    assert (event["uuid"], event["name"], event["queue"]) == ("mine", "shop.add", shop.queue)


def test_key_waits_for_a_queue_that_is_full(
    open_shop: Open, sqlite_url: str, rabbitmq: RabbitMQServer
) -> None:
    name = f"full-{time.time_ns()}"
    full = Queue(
        name, Exchange(name), name, queue_arguments={"x-max-length": 2, "x-overflow": "reject-publish"}
    )
    shop = open_shop(sqlite_url, rabbitmq.url, task_queues=[full])
    shop.send(*range(8), key="k", queue=name)
    received: list[int] = []

    def is_all_there() -> bool:
        received.extend(shop.received(name))
        return len(received) == 8

    with shop.running_relay():
        until(is_all_there, within=30)
    # RabbitMQ may take one more than it should, and never another order.
    assert received == list(range(8))


def test_row_that_holds_no_message_is_given_up(
    open_shop: Open, sqlite_url: str, valkey: RedisServer
) -> None:
    letters = f"letters-{time.time_ns()}"
    shop = open_shop(sqlite_url, singleton_outbox_max_tries=1, singleton_dead_letter_queue=letters)
    shop.send(1, 2)
    with shop.engine.begin() as connection:
        first = connection.scalar(sa.select(sa.func.min(OutboxRow.id)))
        connection.execute(sa.update(OutboxRow).where(OutboxRow.id == first).values(message="{"))
    shop.drain()
    assert shop.received() == [2]
    with shop.engine.connect() as connection:
        assert connection.scalar(sa.select(OutboxRow.state).where(OutboxRow.id == first)) == "dead"
    assert [each.reason for each in dead_letters_of(shop.app).list()] == ["unpublished"]
    valkey.connect().delete(letters)


# What wakes the relay


def test_commit_wakes_a_relay_of_the_same_process(open_shop: Open, sqlite_url: str) -> None:
    shop = open_shop(sqlite_url)
    with shop.running_relay():
        shop.send(0)
        until(lambda: shop.states() == [(0, "published")])
        for number in range(1, 4):
            began = time.monotonic()
            shop.send(number)
            until(lambda: {state for _, state in shop.states()} == {"published"})
            assert time.monotonic() - began < 5, "it was found only by looking"


def test_postgres_tells_a_relay_of_another_process(
    open_shop: Open, postgres: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(postgres.url)
    shop = open_shop(postgres.url)
    # As in a process without a relay.
    monkeypatch.setattr("celery_singleton_lock.recovery.outbox.waking.is_anybody_here", lambda: False)
    with shop.running_relay():
        shop.send(0)
        until(lambda: shop.states() == [(0, "published")])
        for number in range(1, 4):
            began = time.monotonic()
            shop.send(number)
            until(lambda: {state for _, state in shop.states()} == {"published"})
            assert time.monotonic() - began < 5, "it was found only by looking"


def test_published_rows_are_deleted_after_a_while(open_shop: Open, database_url: str) -> None:
    shop = open_shop(database_url, singleton_outbox_keep=0.05)
    shop.send(1, 2, 3)
    shop.drain()
    assert len(shop.states()) == 3
    time.sleep(0.1)
    shop.send(4)
    with shop.running_relay():
        until(lambda: [number for number, _ in shop.states()] in ([4], []))
    assert sorted(shop.received()) == [1, 2, 3, 4]


# What can be sent, and how


def test_async_session_sends(open_shop: Open, postgres: Any) -> None:
    make_tables(postgres.url)
    shop = open_shop(postgres.url)

    async def send() -> None:
        engine = create_async_engine(postgres.url.replace("+psycopg:", "+psycopg_async:"))
        async with AsyncSession(engine) as session, session.begin():
            outbox.send(session, shop.add, (1,), key="a")
            outbox.send(session, shop.add, (2,), key="a")
        await engine.dispose()

    asyncio.run(send())
    assert shop.drain() == 2
    assert shop.received() == [1, 2]


def test_scoped_session_sends(open_shop: Open, sqlite_url: str) -> None:
    shop = open_shop(sqlite_url)
    session = scoped_session(sessionmaker(shop.engine))
    outbox.send(session, shop.add, (1,))
    session.commit()
    session.remove()
    assert shop.drain() == 1


def test_task_may_be_named_and_chains_are_one_message(open_shop: Open, sqlite_url: str) -> None:
    shop = open_shop(sqlite_url)
    with shop.transaction() as session:
        outbox.send(session, "shop.add", (1,), app=shop.app)
        outbox.send(session, chain(shop.add.s(2), shop.add.s(3)))
    assert shop.drain() == 2
    assert sorted(shop.received()) == [1, 2]


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((object(),), {}, "not json"),
        ((1,), {"serializer": "pickle"}, "no pickle"),
        ((1,), {"headers": {"x": object()}}, "plain JSON"),
        ((1,), {"key": ""}, "key=''"),
        ((1,), {"key": "k" * 300}, "255"),
    ],
    ids=["arguments", "pickle", "headers", "empty key", "long key"],
)
def test_what_no_row_can_hold_is_refused_at_once(
    open_shop: Open, sqlite_url: str, args: tuple[Any, ...], options: dict[str, Any], text: str
) -> None:
    shop = open_shop(sqlite_url)
    with shop.transaction() as session:
        with pytest.raises(ConfigurationError, match=text):
            outbox.send(session, shop.add, args, **options)
        assert not session.new


def test_arguments_that_the_task_does_not_take_are_refused_at_once(
    open_shop: Open, sqlite_url: str
) -> None:
    shop = open_shop(sqlite_url)
    with shop.transaction() as session, pytest.raises(TypeError):
        outbox.send(session, shop.add, (1, 2, 3))


def test_canvas_of_several_messages_is_refused(open_shop: Open, sqlite_url: str) -> None:
    shop = open_shop(sqlite_url)
    add = shop.add
    with shop.transaction() as session:
        for canvas in (
            group(add.s(1), add.s(2)),
            chord([add.s(1)], add.s(2)),
            chain(group(add.s(1), add.s(2)), add.s(3)),
        ):
            with pytest.raises(ConfigurationError, match="more than one message"):
                outbox.send(session, canvas)


def test_what_is_no_session_is_refused(open_shop: Open, sqlite_url: str) -> None:
    shop = open_shop(sqlite_url)
    with pytest.raises(ConfigurationError, match="Session"):
        outbox.send(shop.engine, shop.add, (1,))


def test_relay_without_a_database_says_what_to_set() -> None:
    shop = Shop("sqlite://", "memory://")
    shop.app.conf.singleton_outbox_url = None
    with pytest.raises(ConfigurationError, match="singleton_outbox_url"):
        shop.relay()


def test_tables_in_the_metadata_of_an_application_are_those_of_the_ledger(database_url: str) -> None:
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    metadata = sa.MetaData()
    outbox.add_tables(metadata)
    outbox.add_tables(metadata)
    engine = sa.create_engine(database_url)
    options = {"include_name": lambda name, kind, _: kind != "table" or name in metadata.tables}
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
    engine.dispose()


def test_eager_task_is_executed_on_commit_and_not_if_it_is_rolled_back(
    open_shop: Open, sqlite_url: str
) -> None:
    shop = open_shop(sqlite_url, task_always_eager=True)
    done: list[int] = []
    shop.add.run = done.append
    with Session(shop.engine) as session:
        outbox.send(session, shop.add, (1,))
        session.rollback()
        outbox.send(session, shop.add, (2,))
        with session.begin_nested() as savepoint:
            outbox.send(session, shop.add, (3,))
            savepoint.rollback()
        with session.begin_nested():
            outbox.send(session, shop.add, (4,))
        assert done == []
        session.commit()
        assert done == [2, 4]
        session.commit()
    assert done == [2, 4]
    assert shop.states() == []
