"""Real servers for the tests: each started once, when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytest.register_assert_rewrite("celery_singleton_lock.testing.conformance")

from celery_singleton_lock.testing.servers import (  # noqa: E402
    MariaDBServer,
    PostgresServer,
    RabbitMQServer,
    RedisCluster,
    RedisServer,
    SentinelSet,
)

from .support import Started, start_or_skip  # noqa: E402


@contextmanager
def running(server: Started) -> Iterator[Started]:
    try:
        yield start_or_skip(server)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def valkey() -> Iterator[RedisServer]:
    with running(RedisServer("valkey", persistent=True)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    with running(RedisServer("redis", persistent=True)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_tls() -> Iterator[RedisServer]:
    # The valkey of the wheel is built without TLS.
    with running(RedisServer("redis", tls=True, password="s3cret:@/")) as server:
        yield server


@pytest.fixture(scope="session")
def valkey_socket() -> Iterator[RedisServer]:
    with running(RedisServer("valkey", unix_socket=True)) as server:
        yield server


@pytest.fixture(scope="session")
def sentinels() -> Iterator[SentinelSet]:
    with running(SentinelSet()) as servers:
        yield servers


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with running(RedisCluster()) as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with running(PostgresServer()) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    with running(MariaDBServer()) as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQServer]:
    with running(RabbitMQServer()) as server:
        yield server


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--whole-matrix",
        action="store_true",
        help="end to end on every broker, kind of lock and pool, not only on each pair of them",
    )
