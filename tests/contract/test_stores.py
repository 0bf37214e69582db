"""The conformance kit over every store and topology, on real servers."""

from __future__ import annotations

import functools
import itertools
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from celery_singleton_lock import StoreUnavailable, open_store
from celery_singleton_lock.leases.memory import MemoryLeaseStore
from celery_singleton_lock.leases.redlock import RedlockLeaseStore
from celery_singleton_lock.testing.conformance import (
    LeaseStoreFacts,
    MemoryLossFacts,
    NetworkFacts,
    RestartFacts,
)
from celery_singleton_lock.testing.conformance.fixtures import OpenStore
from celery_singleton_lock.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    SentinelSet,
    Server,
    TcpProxy,
)
from tests.conftest import running


def opener(url: str | Sequence[str], timeout: float = 5.0) -> OpenStore:
    """A store of its own on a server that other tests use, too. The timeout bears a busy machine."""
    prefix = f"test-{uuid.uuid4().hex[:12]}"
    return functools.partial(open_store, url, prefix=prefix, timeout=timedelta(seconds=timeout))


def through(proxy: TcpProxy, server: Server) -> str:
    return server.url.replace(f":{server.port}", f":{proxy.port}")


@pytest.fixture
def proxy_to() -> Iterator[Callable[[Server], TcpProxy]]:
    opened: list[TcpProxy] = []

    def open_proxy(server: Server) -> TcpProxy:
        opened.append(TcpProxy(server.port).start())
        return opened[-1]

    yield open_proxy
    for proxy in opened:
        proxy.stop()


# Redis and Valkey


class TestValkey(LeaseStoreFacts, RestartFacts):
    @pytest.fixture
    def open_again(self, valkey: RedisServer) -> OpenStore:
        return opener(valkey.url)

    @pytest.fixture
    def restart_server(self, valkey: RedisServer) -> Callable[[], None]:
        return functools.partial(kill_and_restart, valkey)


class TestRedis(LeaseStoreFacts, RestartFacts):
    @pytest.fixture
    def open_again(self, redis_server: RedisServer) -> OpenStore:
        return opener(redis_server.url)

    @pytest.fixture
    def restart_server(self, redis_server: RedisServer) -> Callable[[], None]:
        return functools.partial(kill_and_restart, redis_server)


class TestRedisOverTls(LeaseStoreFacts):
    @pytest.fixture
    def open_again(self, redis_tls: RedisServer) -> OpenStore:
        return opener(redis_tls.url)


class TestValkeyOverUnixSocket(LeaseStoreFacts):
    @pytest.fixture
    def open_again(self, valkey_socket: RedisServer) -> OpenStore:
        return opener(valkey_socket.url)


class TestSentinel(LeaseStoreFacts):
    @pytest.fixture
    def open_again(self, sentinels: SentinelSet) -> OpenStore:
        return opener(sentinels.url)


class TestCluster(LeaseStoreFacts):
    @pytest.fixture
    def open_again(self, cluster: RedisCluster) -> OpenStore:
        return opener(cluster.url)


class TestValkeyThatForgets(MemoryLossFacts):
    """Restarted without its data: another server, as far as anybody can tell."""

    @pytest.fixture
    def forgetful(self) -> Iterator[RedisServer]:
        with RedisServer() as server:
            yield server

    @pytest.fixture
    def open_again(self, forgetful: RedisServer) -> OpenStore:
        return opener(forgetful.url)

    @pytest.fixture
    def lose_memory(self, forgetful: RedisServer) -> Callable[[], None]:
        return functools.partial(kill_and_restart, forgetful, keep_data=False)


class TestValkeyThatIsFlushed(MemoryLossFacts):
    """The same server, without its data: no connection breaks."""

    @pytest.fixture
    def open_again(self, valkey_socket: RedisServer) -> OpenStore:
        return opener(valkey_socket.url)

    @pytest.fixture
    def lose_memory(self, valkey_socket: RedisServer) -> Callable[[], None]:
        def flush() -> None:
            valkey_socket.connect().flushall()

        return flush


class TestValkeyOverABadNetwork(NetworkFacts):
    @pytest.fixture
    def proxy(self, valkey: RedisServer, proxy_to: Callable[[Server], TcpProxy]) -> TcpProxy:
        return proxy_to(valkey)

    @pytest.fixture
    def open_again(self, valkey: RedisServer, proxy: TcpProxy) -> OpenStore:
        return opener(through(proxy, valkey), timeout=1)


# Redlock


class Nodes:
    """Five servers, and a proxy before each, which together do what one does."""

    def __init__(self) -> None:
        self.servers = [RedisServer(persistent=True) for _ in range(5)]
        self._next_to_die = itertools.cycle(self.servers)

    @property
    def urls(self) -> list[str]:
        return [server.url for server in self.servers]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def restart_one(self, anybody: OpenStore) -> None:
        """A quorum bears one such loss at a time: until the node was repaired, by whoever uses it."""
        kill_and_restart(next(self._next_to_die))
        with closing(anybody()) as store:
            assert isinstance(store, RedlockLeaseStore)
            give_up_at = time.monotonic() + 20
            while not all(node.takes_part for node in store.node_facts()):
                assert time.monotonic() < give_up_at
                with suppress(StoreUnavailable):
                    store.now()  # to look at the nodes repairs none: to use them does
                time.sleep(0.02)


class ManyProxies:
    """The faults of a `TcpProxy`, to all connections."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self.proxies = [TcpProxy(server.port).start() for server in servers]
        self.urls = [f"redis://127.0.0.1:{proxy.port}/0" for proxy in self.proxies]

    def __getattr__(self, fault: str) -> Callable[..., None]:
        def hurt(*given: Any) -> None:
            for proxy in self.proxies:
                getattr(proxy, fault)(*given)

        return hurt


@pytest.fixture(scope="module")
def five() -> Iterator[Nodes]:
    with running(Nodes()) as nodes:
        yield nodes


class TestRedlock(LeaseStoreFacts, RestartFacts):
    """One node after the other is restarted, which is one that forgot, whatever it has on its disk."""

    @pytest.fixture
    def open_again(self, five: Nodes) -> OpenStore:
        return opener(five.urls)

    @pytest.fixture
    def restart_server(self, five: Nodes, open_again: OpenStore) -> Callable[[], None]:
        return functools.partial(five.restart_one, open_again)


class TestRedlockThatForgets(MemoryLossFacts):
    """All nodes are flushed, and somebody says that it is accepted."""

    @pytest.fixture
    def open_again(self, five: Nodes) -> OpenStore:
        return opener(five.urls)

    @pytest.fixture
    def lose_memory(self, five: Nodes, open_again: OpenStore) -> Callable[[], None]:
        def flush() -> None:
            for server in five.servers:
                server.connect().flushall()
            with closing(open_again()) as operator:
                assert isinstance(operator, RedlockLeaseStore)
                operator.accept_memory_loss(who="tester", why="to see")

        return flush


class TestRedlockOverABadNetwork(NetworkFacts):
    @pytest.fixture
    def proxy(self, five: Nodes) -> Iterator[ManyProxies]:
        proxies = ManyProxies(five.servers)
        yield proxies
        proxies.stop()

    @pytest.fixture
    def open_again(self, proxy: ManyProxies) -> OpenStore:
        return opener(proxy.urls, timeout=1)


# Databases


class TestSqlite(LeaseStoreFacts):
    @pytest.fixture
    def open_again(self, tmp_path: Path) -> OpenStore:
        return opener(f"sqlite:///{tmp_path}/leases.db")


class TestPostgres(LeaseStoreFacts, RestartFacts):
    @pytest.fixture
    def open_again(self, postgres: PostgresServer) -> OpenStore:
        return opener(postgres.url)

    @pytest.fixture
    def restart_server(self, postgres: PostgresServer) -> Callable[[], None]:
        return functools.partial(kill_and_restart, postgres)


class TestMariaDB(LeaseStoreFacts, RestartFacts):
    @pytest.fixture
    def open_again(self, mariadb: MariaDBServer) -> OpenStore:
        return opener(mariadb.url)

    @pytest.fixture
    def restart_server(self, mariadb: MariaDBServer) -> Callable[[], None]:
        return functools.partial(kill_and_restart, mariadb)


class TestSqliteThatForgets(MemoryLossFacts):
    @pytest.fixture
    def open_again(self, tmp_path: Path) -> OpenStore:
        return opener(f"sqlite:///{tmp_path}/leases.db")

    @pytest.fixture
    def lose_memory(self, tmp_path: Path) -> Callable[[], None]:
        return functools.partial(drop_table, f"sqlite:///{tmp_path}/leases.db")


class TestPostgresThatForgets(MemoryLossFacts):
    @pytest.fixture
    def open_again(self, postgres: PostgresServer) -> OpenStore:
        return opener(postgres.url)

    @pytest.fixture
    def lose_memory(self, postgres: PostgresServer) -> Callable[[], None]:
        return functools.partial(drop_table, postgres.url)


class TestPostgresOverABadNetwork(NetworkFacts):
    @pytest.fixture
    def proxy(self, postgres: PostgresServer, proxy_to: Callable[[Server], TcpProxy]) -> TcpProxy:
        return proxy_to(postgres)

    @pytest.fixture
    def open_again(self, postgres: PostgresServer, proxy: TcpProxy) -> OpenStore:
        return opener(through(proxy, postgres), timeout=1)


class TestMariaDBOverABadNetwork(NetworkFacts):
    @pytest.fixture
    def proxy(self, mariadb: MariaDBServer, proxy_to: Callable[[Server], TcpProxy]) -> TcpProxy:
        return proxy_to(mariadb)

    @pytest.fixture
    def open_again(self, mariadb: MariaDBServer, proxy: TcpProxy) -> OpenStore:
        return opener(through(proxy, mariadb), timeout=1)


# One process


class TestMemory(LeaseStoreFacts, MemoryLossFacts):
    runs_in_one_process = True

    @pytest.fixture
    def one_store(self) -> MemoryLeaseStore:
        return MemoryLeaseStore()

    @pytest.fixture
    def open_again(self, one_store: MemoryLeaseStore) -> OpenStore:
        return lambda: one_store

    @pytest.fixture
    def lose_memory(self, one_store: MemoryLeaseStore) -> Callable[[], None]:
        return one_store.forget


def kill_and_restart(server: Server, *, keep_data: bool = True) -> None:
    server.kill()
    server.restart(keep_data=keep_data)


def drop_table(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("DROP TABLE singleton_leases"))
    engine.dispose()
