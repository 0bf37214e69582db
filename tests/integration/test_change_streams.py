"""Change streams on real databases and Redis: each change once, in order, whoever dies or is late."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from celery import Celery
from click.testing import CliRunner, Result

from celery_singleton_lock import ChangeStream, ConfigurationError, LeaseLost, LockNotAcquired, sharded
from celery_singleton_lock.cli import singleton
from celery_singleton_lock.streams import Batch, RedisChanges, TableChanges, bucket_of, streams_of
from celery_singleton_lock.streams import stream as stream_module
from celery_singleton_lock.testing.servers import RedisServer

from .ledgers import DATABASES, empty_ledger, url_of

metadata = sa.MetaData()
changes_table = sa.Table(
    "changes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("account", sa.Integer, nullable=False),
    sa.Column("done_at", sa.DateTime(timezone=True)),
)
effects_table = sa.Table(
    "effects",
    metadata,
    sa.Column("number", sa.Integer, primary_key=True),
    sa.Column("change", sa.Integer, nullable=False),
)
ACCOUNTS = 10


def new_app(valkey: RedisServer, ttl: float = 2) -> Celery:
    app = Celery("streams", broker=valkey.url, set_as_current=False)
    app.conf.update(singleton_lock_ttl=ttl, singleton_slot_ttl=0.5)
    return app


class Ledgered:
    """A table of changes, and a table of their effects."""

    def __init__(self, url: str, valkey: RedisServer) -> None:
        self.valkey = valkey
        self.engine = sa.create_engine(url)
        metadata.drop_all(self.engine)
        metadata.create_all(self.engine)

    def stream(
        self, source: TableChanges | None = None, *, ttl: float = 2, **options: Any
    ) -> ChangeStream:
        source = source or TableChanges(self.engine, changes_table, key="account", done="done_at")
        options = {"shards": 4, "batch": 5} | options
        return ChangeStream("accounts", source, app=new_app(self.valkey, ttl), **options)

    def add(self, count: int) -> None:
        with self.engine.begin() as connection:
            rows = [{"account": number % ACCOUNTS} for number in range(count)]
            connection.execute(changes_table.insert(), rows)

    def effects(self) -> list[int]:
        with self.engine.connect() as connection:
            return list(
                connection.scalars(sa.select(effects_table.c.change).order_by(effects_table.c.number))
            )


def apply(batch: Batch) -> None:
    rows = [{"change": row.id} for row in batch.changes]
    batch.connection.execute(effects_table.insert(), rows)


@pytest.fixture(params=DATABASES)
def ledgered(request: pytest.FixtureRequest, valkey: RedisServer) -> Iterator[Ledgered]:
    url = url_of(request.param, request)
    ledger = empty_ledger(url)
    ledger.schema.upgrade()
    ledger.close()
    valkey.connect().flushdb()
    found = Ledgered(url, valkey)
    yield found
    metadata.drop_all(found.engine)
    found.engine.dispose()


# A table


def test_each_change_is_applied_once_by_any_number_of_instances(ledgered: Ledgered) -> None:
    ledgered.add(100)
    streams = [ledgered.stream() for _ in range(3)]
    streams[0].shards  # noqa: B018 - recorded, so that the threads do not wait for each other
    done: list[int] = []
    threads = [
        threading.Thread(target=lambda each=each: done.append(each.drain(apply))) for each in streams
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # What somebody else was at was passed over: nothing is, once it has ended.
    done.append(streams[0].drain(apply))
    assert sum(done) == 100
    assert Counter(ledgered.effects()) == Counter(range(1, 101))
    assert streams[0].pending == 0


def test_batch_whose_handler_fails_stays_pending_and_has_no_effect(ledgered: Ledgered) -> None:
    ledgered.add(20)
    stream = ledgered.stream(shards=1)
    seen: list[int] = []

    def fail_once(batch: Batch) -> None:
        apply(batch)
        seen.append(len(batch.changes))
        if len(seen) == 3:
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError):
        stream.drain(fail_once)
    assert ledgered.effects() == list(range(1, 11))
    assert stream.drain(fail_once) == 10
    assert ledgered.effects() == list(range(1, 21))


def test_holder_that_comes_late_changes_nothing(ledgered: Ledgered) -> None:
    ledgered.add(5)
    late, other = ledgered.stream(shards=1), ledgered.stream(shards=1)

    def sleep(batch: Batch) -> None:
        # Its lease is gone, and somebody else did the work.
        ledgered.valkey.connect().flushdb()
        batch.connection.rollback()
        assert other.drain(apply) == 5
        raise LeaseLost(batch.lease.key, batch.fence)

    with pytest.raises(LeaseLost):
        late.drain(sleep)
    source = TableChanges(ledgered.engine, changes_table, key="account", done="done_at")
    source.open("accounts", "singleton", 1)
    ledgered.add(1)
    with pytest.raises(LeaseLost):
        source.process(0, _lease(1), apply, 5)
    assert Counter(ledgered.effects()) == Counter(range(1, 6))


def test_killed_instances_are_followed_by_others_that_go_on_where_they_stopped(
    ledgered: Ledgered,
) -> None:
    ledgered.add(60)
    ledgered.stream(shards=1).shards  # noqa: B018
    ledgered.engine.dispose()
    for point in ("taken", "handled", "marked", "committed"):
        deadly = Deadly(point)
        source = TableChanges(ledgered.engine, changes_table, key="account", done="done_at")
        deadly.hurt(source, "_mark", "marked")
        deadly.hurt(source, "process", "committed")
        new_stream = partial(ledgered.stream, source, shards=1, ttl=1)
        die_in_a_child(new_stream, deadly.handler(apply))
    # Each had a batch committed before that in which it died, and the last one that, too.
    assert ledgered.effects() == list(range(1, 26))
    stream = ledgered.stream(shards=1)
    done = 0
    while not done:  # until the lease of the dead has run out
        done = stream.drain(apply)
    assert done == 35
    assert ledgered.effects() == list(range(1, 61))


class Deadly:
    """Kills its process at a point of the second batch."""

    def __init__(self, point: str) -> None:
        self._point = point
        self._seen: Counter[str] = Counter()

    def reach(self, point: str) -> None:
        self._seen[point] += 1
        if point == self._point and self._seen[point] == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    def handler(self, handle: Callable[[Batch], object]) -> Callable[[Batch], None]:
        def deadly(batch: Batch) -> None:
            self.reach("taken")
            handle(batch)
            self.reach("handled")

        return deadly

    def hurt(self, source: Any, method: str, point: str) -> None:
        original = getattr(source, method)

        def deadly(*args: Any) -> Any:
            answer = original(*args)
            self.reach(point)
            return answer

        setattr(source, method, deadly)


def die_in_a_child(new_stream: Callable[[], ChangeStream], handle: Callable[[Batch], object]) -> None:
    child = os.fork()
    if child == 0:
        try:
            stream, give_up_at = new_stream(), time.monotonic() + 30
            while time.monotonic() < give_up_at:  # the lease of the last one has to run out
                stream.drain(handle)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


def test_number_of_shards_is_changed_and_no_change_left_out(ledgered: Ledgered) -> None:
    ledgered.add(40)
    stream = ledgered.stream()
    assert stream.drain(apply, shard=0, shards=2) > 0
    stream.change_shards(7)
    assert stream.shards == 7
    ledgered.add(40)
    # Whatever number they were started with.
    for shard in range(4):
        stream.drain(apply, shard=shard, shards=4)
    assert Counter(ledgered.effects()) == Counter(range(1, 81))
    stream.change_shards(2)
    ledgered.add(20)
    stream.drain(apply, shard=0, shards=2)
    stream.drain(apply, shard=1, shards=2)
    effects = ledgered.effects()
    assert Counter(effects) == Counter(range(1, 101))
    for account in range(ACCOUNTS):
        own = [change for change in effects if (change - 1) % ACCOUNTS == account]
        assert own == sorted(own)


def test_number_of_shards_is_not_changed_while_somebody_is_at_work(ledgered: Ledgered) -> None:
    ledgered.add(5)
    stream, other = ledgered.stream(), ledgered.stream()
    refused: list[BaseException] = []

    def change_meanwhile(batch: Batch) -> None:
        apply(batch)
        if not refused:
            with pytest.raises(LockNotAcquired) as caught:
                other.change_shards(2, wait=0)
            refused.append(caught.value)

    stream.drain(change_meanwhile)
    assert refused
    assert stream.shards == 4


# Redis


@pytest.fixture
def redis_stream(valkey: RedisServer) -> tuple[ChangeStream, RedisChanges]:
    valkey.connect().flushdb()
    source = RedisChanges(valkey.connect())
    return ChangeStream("events", source, app=new_app(valkey), shards=4, batch=5), source


def test_changes_in_redis_are_handled_in_the_order_of_their_keys(
    redis_stream: tuple[ChangeStream, RedisChanges],
) -> None:
    stream, source = redis_stream
    for number in range(100):
        source.add(f"k{number % 7}", {"number": number})
    assert stream.pending == 100
    seen: list[int] = []
    for shard in range(2):
        stream.drain(lambda batch: seen.extend(_numbers(batch)), shard=shard, shards=2)
    assert sorted(seen) == list(range(100))
    for key in range(7):
        own = [number for number in seen if number % 7 == key]
        assert own == sorted(own)
    assert stream.pending == 0


def test_changes_in_redis_stay_if_their_handler_fails(
    redis_stream: tuple[ChangeStream, RedisChanges],
) -> None:
    stream, source = redis_stream
    source.add("a", {"number": 1})

    def fail(batch: Batch) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        stream.drain(fail)
    assert stream.pending == 1


def test_what_a_killed_instance_did_not_mark_in_redis_is_handled_again_and_nothing_else(
    valkey: RedisServer,
) -> None:
    valkey.connect().flushdb()
    client: Any = valkey.connect()

    def new_stream(source: RedisChanges) -> ChangeStream:
        return ChangeStream("events", source, app=new_app(valkey, ttl=1), shards=1, batch=5)

    def handle(batch: Batch) -> None:
        for change in batch.changes:
            client.rpush("handled", change.fields["number"])
            # As a user would, for whom twice is wrong: the id of a change stays the same.
            if client.hsetnx("effects", change.id, change.fields["number"]):
                client.rpush("in order", change.fields["number"])

    first = RedisChanges(client)
    new_stream(first)
    for number in range(60):
        first.add("one", {"number": number})
    for point in ("taken", "handled", "committed"):
        deadly, source = Deadly(point), RedisChanges(client)
        deadly.hurt(source, "process", "committed")
        die_in_a_child(partial(new_stream, source), deadly.handler(handle))
    stream = new_stream(RedisChanges(client))
    while stream.pending:
        stream.drain(handle)
    in_order = [int(each) for each in client.lrange("in order", 0, -1)]
    assert in_order == list(range(60))
    repeated = Counter(int(each) for each in client.lrange("handled", 0, -1)) - Counter(range(60))
    # The second batch of the second one to die: handled, and not marked.
    assert repeated == Counter(range(10, 15))


def test_holder_of_an_older_fence_marks_nothing_in_redis(
    redis_stream: tuple[ChangeStream, RedisChanges],
) -> None:
    stream, source = redis_stream
    source.add("a", {"number": 1})
    shard = next(each for each in range(4) if _is_in(source, each))

    def be_overtaken(batch: Batch) -> None:
        with pytest.raises(RuntimeError):
            source.process(shard, _lease(6), fail, 5)

    def fail(batch: Batch) -> None:
        raise RuntimeError("no")

    with pytest.raises(LeaseLost):
        source.process(shard, _lease(5), be_overtaken, 5)
    assert stream.pending == 1
    with pytest.raises(LeaseLost):
        source.process(shard, _lease(5), fail, 5)


def _lease(fence: int) -> Any:
    return SimpleNamespace(key="k", fence=fence)


def _is_in(source: RedisChanges, shard: int) -> bool:
    return bool(source._client.xlen(f"{source._base}:1:{shard}"))


def test_old_shards_in_redis_are_drained_before_the_new_ones(
    redis_stream: tuple[ChangeStream, RedisChanges],
) -> None:
    stream, source = redis_stream
    for number in range(20):
        source.add(f"k{number % 3}", {"number": number})
    stream.change_shards(9)
    assert stream.is_changing
    for number in range(20, 40):
        source.add(f"k{number % 3}", {"number": number})
    assert stream.pending == 40
    with pytest.raises(ConfigurationError, match="drained first"):
        stream.change_shards(3)
    seen: list[int] = []
    while stream.pending:
        stream.drain(lambda batch: seen.extend(_numbers(batch)))
    assert sorted(seen) == list(range(40))
    for key in range(3):
        own = [number for number in seen if number % 3 == key]
        assert own == sorted(own)
    assert not stream.is_changing
    assert stream.shards == 9


def test_empty_stream_in_redis_has_its_new_shards_at_once(
    redis_stream: tuple[ChangeStream, RedisChanges],
) -> None:
    stream, source = redis_stream
    for shards in (9, 2):
        stream.change_shards(shards)
        assert (stream.shards, stream.is_changing) == (shards, False)
        source.add("k", {"number": shards})
        seen: list[int] = []
        assert stream.drain(lambda batch: seen.extend(_numbers(batch))) == 1  # noqa: B023 - is done
        assert seen == [shards]
        assert stream.pending == 0


def _numbers(batch: Batch) -> list[int]:
    return [int(change.fields["number"]) for change in batch.changes]


# The command line, the schedule, and what is refused


def command(stream: ChangeStream, *arguments: str) -> Result:
    app = stream._app
    return CliRunner().invoke(singleton, ["streams", *arguments], obj=SimpleNamespace(app=app))


def test_streams_are_listed_and_given_other_shards(
    redis_stream: tuple[ChangeStream, RedisChanges], caplog: pytest.LogCaptureFixture
) -> None:
    stream, source = redis_stream
    source.add("a", {"number": 1})
    told = json.loads(command(stream, "list", "--json").stdout)
    assert told["streams"] == [{"stream": "events", "shards": 4, "pending": 1, "changing": False}]
    answer = command(stream, "reshard", "events", "--shards", "6", "--reason", "more", "--wait", "1")
    assert answer.exit_code == 1, "nobody drains meanwhile"
    assert "stream_resharded" in caplog.text
    stream.drain(lambda batch: None)
    stream.drain(lambda batch: None)
    assert stream.shards == 6
    answer = command(stream, "reshard", "events", "--shards", "3", "--reason", "less", "--wait", "1")
    assert (answer.exit_code, stream.shards, stream.is_changing) == (0, 3, False), "nothing is in it"
    assert command(stream, "reshard", "nobody", "--shards", "6", "--reason", "x").exit_code == 1


def test_each_shard_has_an_entry_of_its_own() -> None:
    entries = sharded("drain", "shop.drain", shards=3, schedule=5.0, kwargs={"x": 1}, jitter=1)
    assert list(entries) == ["drain:0", "drain:1", "drain:2"]
    assert entries["drain:2"] == {
        "task": "shop.drain",
        "schedule": 5.0,
        "kwargs": {"x": 1, "shard": 2, "shards": 3},
        "jitter": 1,
    }


def test_shards_that_would_have_one_lock_are_refused() -> None:
    task = SimpleNamespace(name="shop.drain", unique_on=(), lock_key=None)
    with pytest.raises(ConfigurationError, match="one lock"):
        sharded("drain", task, schedule=5.0)
    with pytest.raises(ConfigurationError, match="shards"):
        sharded("drain", "shop.drain", shards=0, schedule=5.0)
    with pytest.raises(ConfigurationError, match="given to each"):
        sharded("drain", "shop.drain", schedule=5.0, kwargs={"shard": 1})


def test_table_that_cannot_be_drained_is_refused_at_once() -> None:
    engine = sa.create_engine("sqlite://")
    with pytest.raises(ConfigurationError, match="has the columns"):
        TableChanges(engine, changes_table, key="acount")
    texts = sa.Table(
        "t", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("k", sa.String)
    )
    with pytest.raises(ConfigurationError, match="bucket_of"):
        TableChanges(engine, texts, key="k")
    assert bucket_of("a") == bucket_of("a") != bucket_of("b")
    engine.dispose()


def test_streams_of_an_app_are_known_by_name(
    redis_stream: tuple[ChangeStream, RedisChanges],
) -> None:
    stream, _ = redis_stream
    assert streams_of(stream._app) == {"events": stream}
    assert stream_module.DEFAULT_SHARDS == 8
