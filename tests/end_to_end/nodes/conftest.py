"""The nodes of pytest-celery as processes, for each broker, kind of lock and pool."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import pytest
from celery import Celery

from celery_singleton_lock.testing.pytest_celery_plugin import (
    default_rabbitmq_broker,
    default_redis_backend,
    default_redis_broker,
    default_worker_container,
)
from celery_singleton_lock.testing.servers import PostgresServer, RedisServer
from tests.support import start_or_skip

from . import tasks

__all__ = [
    "default_rabbitmq_broker",
    "default_redis_backend",
    "default_redis_broker",
    "default_worker_container",
]


class Place(NamedTuple):
    broker: str
    locks: str
    pool: str

    def __str__(self) -> str:
        return "-".join(self)


WHOLE = [Place(*each) for each in product(("redis", "rabbitmq"), ("redis", "redlock", "postgres"),
                                          ("prefork", "threads"))]  # fmt: skip
PAIRWISE = [
    # Each value of each meets each value of the others.
    Place("redis", "redis", "prefork"), Place("redis", "redlock", "threads"),
    Place("redis", "postgres", "prefork"), Place("rabbitmq", "redis", "threads"),
    Place("rabbitmq", "redlock", "prefork"), Place("rabbitmq", "postgres", "threads"),
]  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" in metafunc.fixturenames:
        places = WHOLE if metafunc.config.getoption("--whole-matrix") else PAIRWISE
        metafunc.parametrize("place", places, ids=str)


@pytest.fixture
def celery_broker(place: Place, request: pytest.FixtureRequest) -> Any:
    name = "celery_rabbitmq_broker" if place.broker == "rabbitmq" else "celery_redis_broker"
    return request.getfixturevalue(name)


@pytest.fixture
def locks(place: Place) -> Iterator[str | list[str]]:
    servers: list[Any] = [RedisServer() for _ in range(3 if place.locks == "redlock" else 1)]
    if place.locks == "postgres":
        servers = [PostgresServer()]
    try:
        urls = [start_or_skip(server).url for server in servers]
        yield urls if place.locks == "redlock" else urls[0]
    finally:
        for server in servers:
            server.stop()


@pytest.fixture
def default_worker_app(default_worker_app: Celery, locks: str | list[str], place: Place) -> Celery:
    default_worker_app.conf.update(
        singleton_lock_url=locks,
        singleton_lock_ttl=2,
        singleton_slot_ttl=1.2,
    )
    if place.broker == "redis":
        default_worker_app.conf.broker_transport_options = {
            "visibility_timeout": 3,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
        }
    return default_worker_app


@pytest.fixture
def default_worker_tasks(default_worker_tasks: set[Any]) -> set[Any]:
    return {*default_worker_tasks, tasks}


@pytest.fixture
def default_worker_command(default_worker_container_cls: Any, place: Place) -> list[str]:
    options = ("-P", place.pool, "-c", "2", "--without-gossip", "--without-mingle")
    return list(default_worker_container_cls.command(*options))
