"""One call at a time (`on_duplicate`), and calls without a worker: eager and direct."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from celery import Celery, chain
from kombu.connection import Connection
from kombu.exceptions import OperationalError
from kombu.transport.redis import Channel

from celery_singleton_lock import (
    ConfigurationError,
    DuplicateRun,
    LeaseRequest,
    Record,
    RecordState,
    SingletonTask,
    Skipped,
    current_run,
)
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer, TcpProxy
from celery_singleton_lock.worker.confirming import Confirming
from celery_singleton_lock.worker.parts import parts_of
from tests.end_to_end.beats import until

from .workers import LEAVES_CONNECTIONS, Gate, define, new_app, outcome_of, queued, record_of, working

WITHIN = 20
pytestmark = LEAVES_CONNECTIONS


@pytest.fixture(scope="module")
def shared_server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """Empty: calls of one test are like those of others, and would join them."""
    client: Any = shared_server.connect()
    client.flushall()
    return shared_server


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    app = new_app(server)
    yield app
    # What it has yet to tell the store would be told to that of the next test, whose calls are alike.
    parts_of(app).confirming.flush()
    gc.collect()


def test_calls_are_published_with_one_client(app: Celery, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    create: Any = Channel._create_client

    def counted(self: Any, *args: Any, **options: Any) -> Any:
        made.append(1)
        return create(self, *args, **options)

    @define(app, base=SingletonTask, name="t", on_duplicate="join")
    def body(number: int) -> None:
        pass

    body.delay(0)
    monkeypatch.setattr(Channel, "_create_client", counted)
    for number in range(1, 11):
        body.delay(number)
    assert len(made) <= 1


def test_queue_that_went_away_with_the_connection_is_declared_again(
    rabbitmq: RabbitMQServer, server: RedisServer
) -> None:
    with TcpProxy(rabbitmq.port) as proxy, Connection(rabbitmq.url) as direct:
        through = rabbitmq.url.replace(f":{rabbitmq.port}", f":{proxy.port}")
        app = Celery("gone", broker=through, set_as_current=False)
        app.conf.update(singleton_lock_url=server.url, task_default_queue="gone")
        app.conf.broker_transport_options = {"confirm_publish": True}

        # A name of its own: its calls may be confirmed when the next test has begun already.
        @define(app, base=SingletonTask, name="gone", on_duplicate="join")
        def body(number: int) -> None:
            pass

        body.delay(0)
        direct.default_channel.queue_delete("gone")
        proxy.cut()
        body.delay(1)
        message = direct.default_channel.basic_get("gone", no_ack=True)
        assert message is not None
        assert message.headers["argsrepr"] == "(1,)"
        direct.default_channel.queue_delete("gone")
        app.close()


def test_equal_call_joins_the_one_that_is_queued_or_running(app: Celery, server: RedisServer) -> None:
    gate, calls = Gate(), []

    @define(app, base=SingletonTask, name="t", on_duplicate="join")
    def body(number: int) -> int:
        calls.append(number)
        gate.enter()
        return number

    first = body.delay(1)
    assert body.delay(1).id == body.apply_async((), {"number": 1}).id == first.id
    assert body.delay(2).id != first.id
    assert queued(server) == 2
    with working(app):
        assert gate.wait_for_entry()
        assert gate.wait_for_entry()
        assert body.delay(1).id == first.id
        gate.open()
        assert first.get(timeout=WITHIN) == 1
        until(lambda: outcome_of(app, first.id) == "succeeded")
        again = body.delay(1)
        assert again.id != first.id
        assert again.get(timeout=WITHIN) == 1
    assert sorted(calls) == [1, 1, 2]


def test_equal_call_is_refused_where_asked_to(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", on_duplicate="raise")
    def body() -> None: ...

    first = body.delay()
    with pytest.raises(DuplicateRun) as refused:
        body.delay()
    assert (refused.value.task, refused.value.run) == ("t", first.id)


def calls_of_scripts(server: RedisServer) -> int:
    client: Any = server.connect()
    stats = client.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_caller_waits_for_the_store_once(
    app: Celery, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Confirming, "WITHIN", 600.0)

    @define(app, base=SingletonTask, name="t", on_duplicate="join")
    def body(number: int) -> None: ...

    before = calls_of_scripts(server)
    for number in range(50):
        body.delay(number)
    parts_of(app).confirming.flush()
    assert calls_of_scripts(server) - before <= 53, "one for each, and one for all"
    keys = [f"call:{body.singleton_unique.of((number,), {})}" for number in range(50)]
    assert all(each.remaining > timedelta(minutes=59) for each in records_of(app, keys))


def records_of(app: Celery, keys: list[str]) -> list[Record]:
    return [record for record in parts_of(app).store.peek(keys) if record is not None]


def test_equal_call_of_the_same_process_joins_what_is_not_confirmed_yet(
    app: Celery, server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Confirming, "WITHIN", 600.0)

    @define(app, base=SingletonTask, name="t", on_duplicate="join")
    def body() -> None: ...

    assert body.delay().id == body.delay().id
    assert queued(server) == 1


ONE_CALL = """
import sys
from celery import Celery
from celery_singleton_lock import SingletonTask
app = Celery("tasks", broker=sys.argv[1])
@app.task(base=SingletonTask, name="t", on_duplicate="join", unique_on=())
def body(): ...
body.delay()
"""


def test_call_of_a_process_that_ends_at_once_is_kept(app: Celery, server: RedisServer) -> None:
    subprocess.run([sys.executable, "-c", ONE_CALL, server.url], check=True, timeout=60)
    [record] = records_of(app, ["call:t"])
    assert record.remaining > timedelta(minutes=59)


def test_call_that_joins_or_is_wrong_leaves_the_connection_to_the_broker_open(
    app: Celery, server: RedisServer, valkey: RedisServer
) -> None:
    # Leases are kept elsewhere: calls are confirmed by a thread, on a connection of its own if need be.
    app.conf.update(singleton_lock_url=valkey.url, singleton_key_prefix=f"test-{uuid.uuid4().hex}")
    define(app, base=SingletonTask, name="t", on_duplicate="join")(_does_nothing)
    body = app.tasks["t"]
    first = body.delay(1)
    client: Any = server.connect()
    made = client.info("stats")["total_connections_received"]
    for _ in range(5):
        assert body.delay(1).id == first.id
        with pytest.raises(TypeError):
            body.delay(1, 2, 3)
        body.apply_async((time.time(),), expires=5)
    assert client.info("stats")["total_connections_received"] == made


@pytest.mark.parametrize("how", ["connection", "producer"])
def test_equal_call_over_a_connection_of_the_callers_own_joins(
    app: Celery, server: RedisServer, how: str
) -> None:
    define(app, base=SingletonTask, name="t", on_duplicate="join")(_does_nothing)
    body = app.tasks["t"]
    with app.connection_for_write() as connection:
        own = connection if how == "connection" else app.amqp.Producer(connection)
        first = body.apply_async((1,), **{how: own})
        assert body.apply_async((1,), **{how: own}).id == first.id
    assert queued(server) == 1


def test_call_that_is_not_published_keeps_nobody_out(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", on_duplicate="raise")
    def body() -> None: ...

    with pytest.raises(OperationalError):
        body.apply_async(connection=app.connection("redis://127.0.0.1:1/0"), retry=False)
    record = record_of(app, "call:t:" + body.singleton_unique.of((), {}).partition(":")[2])
    assert record is not None
    assert record.state is RecordState.FREE
    body.delay()


def test_joining_a_call_that_may_never_have_been_published_publishes_it(
    app: Celery, server: RedisServer
) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, name="t", on_duplicate="join")
    def body() -> int:
        calls.append(1)
        return 1

    key = f"call:{body.singleton_unique.of((), {})}"
    # A client that died between the two.
    parts_of(app).store.acquire([LeaseRequest(key, "run-1", timedelta(seconds=0.7))])
    joined = [body.delay(), body.delay()]
    assert [each.id for each in joined] == ["run-1", "run-1"]
    assert queued(server) == 2
    with working(app):
        assert joined[0].get(timeout=WITHIN) == 1
        until(lambda: queued(server) == 0)
    assert calls == [1]


def test_call_that_expired_keeps_nobody_out(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", on_duplicate="raise")
    def body() -> None: ...

    body.apply_async(expires=1)
    with pytest.raises(DuplicateRun):
        body.delay()
    time.sleep(1.2)
    body.delay()


def test_messages_that_no_call_of_ours_sent_are_found_by_the_worker(app: Celery) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="t", on_duplicate="join", overlap="queue")
    def body(*_: Any) -> int:
        gate.enter()
        return 1

    @define(app, name="collect")
    def collect(value: Any) -> Any:
        return value

    with working(app):
        first = body.delay()
        assert gate.wait_for_entry()
        sent = app.send_task("t")
        chained = chain(body.si(), collect.s()).apply_async()
        for result in (sent, chained):
            skipped = Skipped.read(result.get(timeout=WITHIN))
            assert skipped is not None
            assert (skipped.reason, skipped.by) == ("duplicate", first.id)
        gate.open()
        assert first.get(timeout=WITHIN) == 1


def test_call_stays_one_over_its_retries(app: Celery) -> None:
    calls: list[int] = []

    @define(app, base=SingletonTask, bind=True, name="t", on_duplicate="join")
    def body(self: Any) -> int:
        calls.append(1)
        if len(calls) == 1:
            self.retry(countdown=2)
        return len(calls)

    with working(app):
        first = body.delay()
        until(lambda: outcome_of(app, first.id) == "retried")
        assert body.delay().id == first.id
        assert first.get(timeout=WITHIN) == 2
    assert calls == [1, 1]


def test_arguments_without_a_digest_are_refused_at_the_call(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t", on_duplicate="join", serializer="pickle")
    def body(value: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="no digest"):
        body.delay(object())


def test_name_that_is_no_parameter_is_refused_where_the_task_is_defined(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="regoin"):

        @define(app, base=SingletonTask, name="t", unique_on=["regoin"], lazy=False)
        def body(region: str) -> None: ...


@pytest.mark.parametrize("left", [{"raise_on_duplicate": True}, {"lock_expiry": 600}])
def test_option_that_another_package_left_is_refused(app: Celery, left: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="celery-singleton; "):

        @define(app, base=SingletonTask, name="t", lazy=False, **left)
        def body() -> None: ...


def test_option_that_is_nearly_ours_is_refused(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="did you mean overlap"):

        @define(app, base=SingletonTask, name="t", overlaps="skip", lazy=False)
        def body() -> None: ...


def test_task_without_on_duplicate_is_called_as_celery_calls_it(app: Celery) -> None:
    @define(app, base=SingletonTask, name="t")
    def body() -> None: ...

    body.name  # noqa: B018 - evaluated now
    assert type(app.tasks["t"]).apply_async is SingletonTask.__mro__[1].apply_async


def test_direct_call_takes_no_lock_and_asks_no_store() -> None:
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)

    @define(app, base=SingletonTask, bind=True, name="t", unique_on=())
    def body(self: Any, deep: bool) -> list[Any]:
        run = self.current_run
        run.ensure_held()
        assert current_run() is not None
        return [run.is_locked, run.attempt, run.fence > 0, *(self(False) if deep else [])]

    assert body(True) == [False, 1, True] * 2


@pytest.mark.parametrize("always", [True, False])
def test_eager_mode_takes_no_lock_and_asks_no_store(always: bool) -> None:
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.task_always_eager = always
    app.conf.singleton_lock_url = "redis://127.0.0.1:1/0"
    attempts: list[int] = []

    @define(
        app, base=SingletonTask, bind=True, name="t", on_duplicate="raise", autoretry_for=(OSError,)
    )
    def body(self: Any) -> bool:
        attempts.append(self.current_run.attempt)
        if len(attempts) == 1:
            raise OSError
        return bool(self.current_run.is_locked)

    result = body.delay() if always else body.apply()
    assert result.get() is False
    assert attempts == [1, 2]


def test_eager_mode_takes_a_lock_where_asked_to() -> None:
    app = Celery(broker="memory://", set_as_current=False)
    app.conf.task_always_eager = True

    @define(app, base=SingletonTask, bind=True, name="t", unique_on=(), lock_when_eager=True)
    def body(self: Any, deep: bool) -> Any:
        assert self.current_run.is_locked
        return body.apply((False,)).result if deep else 1

    inner = Skipped.read(body.delay(True).get())
    assert inner is not None
    assert inner.reason == "overlap"
    assert body.delay(False).get() == 1
    assert parts_of(app).keep_alive.leases == []


def _does_nothing(number: float) -> None: ...
