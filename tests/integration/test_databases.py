"""Databases that go silent: nobody waits for them for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from celery_singleton_lock.databases import Database
from celery_singleton_lock.testing.servers import Server, TcpProxy

TIMEOUT = timedelta(seconds=0.5)
WITHIN_S = 8
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["postgres", "mariadb"])
def server(request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def proxy(server: Server) -> Iterator[TcpProxy]:
    with TcpProxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def database(server: Server, proxy: TcpProxy) -> Iterator[Database]:
    database = Database(server.url.replace(f":{server.port}", f":{proxy.port}"), TIMEOUT)
    yield database
    database.close()


def ask(database: Database) -> Any:
    with database.engine.begin() as connection:
        return connection.scalar(sa.text("SELECT 1"))


def test_server_that_is_silent_before_it_is_connected_to_is_given_up(
    database: Database, proxy: TcpProxy
) -> None:
    proxy.blackhole()
    began = time.monotonic()
    with pytest.raises(sa.exc.OperationalError):
        ask(database)
    assert time.monotonic() - began < WITHIN_S
    proxy.heal()
    assert ask(database) == 1


def test_server_that_falls_silent_while_it_is_got_to_know_is_given_up(
    database: Database, proxy: TcpProxy
) -> None:
    """SQLAlchemy asks a new connection for the version, and more, before anybody may use it."""
    connects: list[int] = []

    def fall_silent(*_: Any) -> None:
        if not connects:
            proxy.blackhole()
        connects.append(1)

    sa.event.listen(database.engine, "connect", fall_silent, insert=True)
    began = time.monotonic()
    with pytest.raises(sa.exc.OperationalError):
        ask(database)
    assert time.monotonic() - began < WITHIN_S
    proxy.heal()
    assert ask(database) == 1
    # What watched over the beginning is over: the connection is usable after that.
    time.sleep(2 * TIMEOUT.total_seconds())
    assert ask(database) == 1
    assert len(connects) == 2
