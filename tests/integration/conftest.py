"""A broker and an app for workers in the process of a test; the brokers that letters are tested on."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_singleton_lock.recovery.dead_letters import DeadLetters
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy
from tests.integration.letter_brokers import forget, letters_on, port_of

from .workers import new_app


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def app(server: RedisServer) -> Iterator[Celery]:
    client: Any = server.connect()
    client.flushall()
    yield new_app(server)
    gc.collect()


@pytest.fixture(params=["redis", "rabbitmq"])
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq").url
    else:
        url = request.getfixturevalue("valkey").url
    # Workers of other tests, on the same server, may have left letters there.
    forget(url)
    yield url
    forget(url)


@pytest.fixture
def dead_letters(broker_url: str) -> Iterator[DeadLetters]:
    letters = letters_on(broker_url)
    yield letters
    letters.close()


@pytest.fixture
def proxy(broker_url: str) -> Iterator[TcpProxy]:
    proxy = TcpProxy(port_of(broker_url)).start()
    yield proxy
    proxy.stop()
