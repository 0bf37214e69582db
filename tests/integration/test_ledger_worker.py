"""A worker with a ledger: what it does when the lease store forgot, and after a worker that died."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock import LeaseRequest, SingletonTask, open_store
from celery_singleton_lock.core import headers
from celery_singleton_lock.core.models import Granted
from celery_singleton_lock.ledger import required_ledger_of
from celery_singleton_lock.ledger.claims import Claim, Claims
from celery_singleton_lock.ledger.queries import Queries
from celery_singleton_lock.testing.servers import PostgresServer, RedisServer, TcpProxy
from celery_singleton_lock.worker.parts import parts_of

from .ledgers import ready_ledger
from .workers import Gate, define, new_app, queued, unacknowledged, working

SLOT = datetime.now(UTC).replace(microsecond=0) - timedelta(minutes=1)
OF_BEAT = {headers.ENTRY: "nightly", headers.SLOT: SLOT.isoformat()}


class Shop:
    """An app whose leases are not where its messages are, so that they can be forgotten alone."""

    def __init__(self, server: RedisServer, database_url: str) -> None:
        self.server = server
        self.lock_url = server.url.removesuffix("/0") + "/1"
        self.app: Celery = new_app(
            server, singleton_lock_url=self.lock_url, singleton_database_url=database_url
        )
        self.calls: list[str] = []
        self.gate = Gate()

        @define(self.app, base=SingletonTask, bind=True, overlap="allow")
        def work(task: Any, what: str = "") -> str:
            self.calls.append(task.request.id)
            if what == "wait":
                self.gate.enter()
            return "done now"

        @define(self.app)
        def told(result: str) -> None:
            self.told.append(result)
            self.was_told.set()

        self.told: list[str] = []
        self.was_told = threading.Event()
        self.tell, self.work = told, work

    def send(self, run: str, *args: str, **options: Any) -> Any:
        return self.work.apply_async(args, task_id=run, **options)

    def forget(self) -> None:
        store = open_store(self.lock_url)
        client: Any = self.server.connect()
        client.select(1)
        client.flushdb()
        store.close()

    def status(self, run: str) -> str | None:
        past = Queries(required_ledger_of(self.app)).run(run)
        return None if past is None else past.status.value

    def settle(self) -> None:
        """Until no message is left."""
        until(lambda: not queued(self.server) and not unacknowledged(self.server))


@pytest.fixture
def shop(valkey: RedisServer, tmp_path: Path) -> Iterator[Shop]:
    client: Any = valkey.connect()
    client.flushall()
    url = f"sqlite:///{tmp_path}/shop.db"
    ready_ledger(url).close()
    shop = Shop(valkey, url)
    yield shop
    shop.gate.open()
    required_ledger_of(shop.app).close()
    client.flushall()


@pytest.mark.parametrize("of", [{}, OF_BEAT], ids=["by hand", "of beat"])
def test_an_emptied_store_starts_no_finished_run_again(shop: Shop, of: dict[str, str]) -> None:
    with working(shop.app):
        assert shop.send("first", headers=of).get(timeout=20) == "done now"
        until(lambda: shop.status("first") == "succeeded")
        shop.forget()
        shop.send("first", headers=of)
        assert shop.send("second").get(timeout=20) == "done now"
        shop.settle()
    assert shop.calls == ["first", "second"]


def test_a_run_that_is_running_when_the_store_is_emptied_is_not_begun_again(shop: Shop) -> None:
    with working(shop.app):
        running = shop.send("first", "wait", headers=OF_BEAT)
        assert shop.gate.wait_for_entry()
        until(lambda: shop.status("first") == "running")
        shop.forget()
        # Its worker puts the lease back when it renews.
        until(lambda: parts_of(shop.app).store.peek(["run:first"])[0])
        shop.send("first", headers=OF_BEAT)
        until(lambda: unacknowledged(shop.server) == 2)
        shop.gate.open()
        assert running.get(timeout=20) == "done now"
        shop.settle()
    assert shop.calls == ["first"]


def test_a_new_ledger_and_a_new_store_ask_nothing(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Claim] = []
    monkeypatch.setattr(Claims, "take", lambda self, claim: asked.append(claim))
    with working(shop.app):
        for number in range(5):
            shop.send(f"run-{number}").get(timeout=20)
    assert asked == []
    assert len(shop.calls) == 5


def test_a_backfill_of_a_slot_that_ran_and_was_forgotten_long_ago_repeats_nothing(shop: Shop) -> None:
    old = {headers.ENTRY: "nightly", headers.SLOT: (SLOT - timedelta(days=3)).isoformat()}
    with working(shop.app):
        shop.send("first", headers=old).get(timeout=20)
        until(lambda: shop.status("first") == "succeeded")
        # As its time to be remembered would do.
        [taken] = parts_of(shop.app).store.peek(["run:first"])
        assert taken is not None
        client: Any = shop.server.connect()
        client.select(1)
        for key in client.keys("*run:first*"):
            client.delete(key)
        shop.send("first", headers=old)
        shop.settle()
    assert shop.calls == ["first"]


def test_what_a_dead_worker_has_committed_is_not_done_again_but_told(shop: Shop) -> None:
    store, ledger = parts_of(shop.app).store, required_ledger_of(shop.app)
    request = LeaseRequest("run:first", "the dead", timedelta(seconds=0.3), position=1)
    [granted] = store.acquire([request])
    assert isinstance(granted, Granted)
    claim = Claim(key="run:first", owner="the dead", fence=granted.lease.fence, position=1)
    assert ledger.write(lambda c: Claims(ledger).finish(c, claim, '"done before"'))
    with working(shop.app):
        result = shop.send("first", link=shop.tell.s())
        assert result.get(timeout=20) == "done before"
        assert shop.was_told.wait(20)
        shop.settle()
    assert (shop.calls, shop.told) == ([], ["done before"])


def test_runs_go_on_while_the_database_is_away_but_a_takeover_waits_for_it(
    valkey: RedisServer, postgres: PostgresServer
) -> None:
    client: Any = valkey.connect()
    client.flushall()
    ready_ledger(postgres.url).close()
    with TcpProxy(postgres.port) as proxy:
        url = postgres.url.replace(f":{postgres.port}/", f":{proxy.port}/")
        shop = Shop(valkey, url)
        with working(shop.app):
            shop.send("first").get(timeout=20)
            proxy.refuse()
            proxy.cut()
            shop.send("second").get(timeout=20)
            request = LeaseRequest("run:third", "the dead", timedelta(seconds=0.1), position=1)
            parts_of(shop.app).store.acquire([request])
            time.sleep(0.2)  # until it has run out
            third = shop.send("third")
            until(lambda: unacknowledged(valkey))
            assert "third" not in shop.calls
            proxy.heal()
            assert third.get(timeout=30) == "done now"
            until(lambda: shop.status("second") == "succeeded")
        required_ledger_of(shop.app).close()
    client.flushall()


def until(fact: Any, within: float = 20) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.02)
