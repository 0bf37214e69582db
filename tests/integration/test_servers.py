"""The servers that all other tests stand on: they serve, they can be hurt, they leave nothing."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis
import sqlalchemy
from kombu.connection import Connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_singleton_lock.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RabbitMQServer,
    RedisCluster,
    RedisServer,
    SentinelSet,
    Server,
    ServerFailed,
    ServerMissing,
    TcpProxy,
    process,
)
from celery_singleton_lock.testing.servers.ports import free_port
from celery_singleton_lock.testing.servers.process_tree import any_alive, descendants
from celery_singleton_lock.testing.servers.redis import Flavour
from celery_singleton_lock.testing.servers.waiting import holds_within
from tests.support import start_or_skip

psutil = pytest.importorskip("psutil")

FLAVOURS: list[Flavour] = ["valkey", "redis"]
SINGLE_SERVERS: list[Callable[[], Server]] = [
    RedisServer,
    lambda: RedisServer("redis"),
    PostgresServer,
    MariaDBServer,
]
SINGLE_SERVER_IDS = ["valkey", "redis", "postgres", "mariadb"]


@pytest.fixture
def valkey() -> Iterator[RedisServer]:
    with start_or_skip(RedisServer()) as server:
        yield server


@pytest.fixture(scope="module")
def shared_rabbitmq() -> Iterator[RabbitMQServer]:
    server = RabbitMQServer()
    yield server
    server.stop()


@pytest.fixture
def rabbitmq(shared_rabbitmq: RabbitMQServer) -> RabbitMQServer:
    """Shared because it takes seconds to start; a test may leave it in any state."""
    return start_or_skip(shared_rabbitmq)


@pytest.fixture
def proxy(valkey: RedisServer) -> Iterator[TcpProxy]:
    with TcpProxy(valkey.port) as proxy:
        yield proxy


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """For what a killed process leaves; unlike ``tmp_path`` it is open to PostgreSQL's user."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def client_of(server: RedisServer) -> Any:
    """A plain client: what a user's URL does is part of the promise."""
    return redis.Redis.from_url(server.url, decode_responses=True, retry=Retry(NoBackoff(), 0))


def sql(server: Server, *statements: str) -> list[Any]:
    """Run the statements in one transaction; return the rows of the last."""
    engine = sqlalchemy.create_engine(server.url, poolclass=sqlalchemy.NullPool)
    with engine.begin() as connection:
        results = [connection.execute(sqlalchemy.text(statement)) for statement in statements]
        return [tuple(row) for row in results[-1]] if results[-1].returns_rows else []


def shared_memory_of(lock_file: Path) -> str:
    """The id of the segment that a PostgreSQL holds, and leaves behind when it is killed."""
    _key, segment = lock_file.read_text().splitlines()[6].split()
    return segment


def listening_addresses(pid: int) -> set[str]:
    return {
        connection.laddr.ip
        for each in [pid, *descendants(pid)]
        for connection in psutil.Process(each).net_connections()
        if connection.status == psutil.CONN_LISTEN
    }


# Every server


@pytest.mark.parametrize("make", SINGLE_SERVERS, ids=SINGLE_SERVER_IDS)
def test_stop_leaves_no_process_and_no_file(make: Callable[[], Server]) -> None:
    server = start_or_skip(make())
    family, directory = [server.pid, *descendants(server.pid)], server.directory
    server.stop()
    server.stop()
    assert not any_alive(family)
    assert not directory.exists()


@pytest.mark.parametrize("make", SINGLE_SERVERS, ids=SINGLE_SERVER_IDS)
def test_server_is_gone_after_an_exception_in_its_block(make: Callable[[], Server]) -> None:
    server = start_or_skip(make())
    pid = server.pid
    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError
    assert not any_alive([pid])


@pytest.mark.parametrize("make", SINGLE_SERVERS, ids=SINGLE_SERVER_IDS)
def test_paused_server_can_be_stopped(make: Callable[[], Server]) -> None:
    with start_or_skip(make()) as server:
        pid = server.pid
        server.pause()
    assert not any_alive([pid])


@pytest.mark.parametrize("make", SINGLE_SERVERS, ids=SINGLE_SERVER_IDS)
def test_server_listens_on_loopback_only(make: Callable[[], Server]) -> None:
    with start_or_skip(make()) as server:
        assert listening_addresses(server.pid) == {"127.0.0.1"}


def test_restart_keeps_port_and_url(valkey: RedisServer) -> None:
    url, pid = valkey.url, valkey.pid
    valkey.restart()
    assert (valkey.url, valkey.running) == (url, True)
    assert valkey.pid != pid


def test_start_of_a_running_server_changes_nothing(valkey: RedisServer) -> None:
    pid = valkey.pid
    valkey.start()
    assert valkey.pid == pid


def test_failed_start_shows_the_log_and_leaves_nothing() -> None:
    server = RedisServer(options={"no-such-setting": "1"})
    with pytest.raises(ServerFailed, match="no-such-setting"):
        start_or_skip(server)
    assert not server.running
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.directory


def test_start_takes_another_port_if_the_first_is_taken(
    valkey: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers = iter([valkey.port, free_port()])
    monkeypatch.setattr(process, "free_port", lambda: next(offers))
    with RedisServer() as server:
        assert server.port != valkey.port
        assert client_of(server).info("server")["process_id"] == server.pid


def test_server_outlives_the_thread_that_started_it() -> None:
    server = RedisServer()
    thread = threading.Thread(target=lambda: start_or_skip(server))
    thread.start()
    thread.join()
    with server:
        assert client_of(server).ping()


def test_missing_program_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ServerMissing, match="apt install redis-server"):
        RedisServer("redis").start()


def test_missing_program_skips_on_a_laptop_and_fails_in_ci(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="redis-server is missing"):
        start_or_skip(RedisServer("redis"))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="redis-server is missing"):
        start_or_skip(RedisServer("redis"))


# The end of the process that started a server

SCRIPT = """
import os, sys, time
from celery_singleton_lock.testing.servers import *
from celery_singleton_lock.testing.servers.process_tree import descendants
try:
    server = {make}.start()
except ServerMissing as missing:
    sys.exit(print("missing", missing.what, missing.remedy, sep="|"))
print("started", *descendants(os.getpid()), sep="|", flush=True)
{then}
"""


class Elsewhere:
    """A Python process that starts a server and then does something else."""

    process: subprocess.Popen[str]
    pids: list[int]

    def __init__(self, directory: Path, make: str, *, then: str) -> None:
        self.directory = directory
        self.script = SCRIPT.format(make=make, then=then)

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", self.script],
            env={**os.environ, "TMPDIR": str(self.directory)},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self.process.stdout is not None
        with self.process.stdout:
            outcome, *facts = self.process.stdout.readline().strip().split("|")
        if outcome == "missing":
            self.process.wait()
            raise ServerMissing(*facts)
        self.pids = [int(pid) for pid in facts]

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="needs the death signal of Linux")
@pytest.mark.parametrize(
    "make", ["RedisServer()", "PostgresServer()", "MariaDBServer()", "RabbitMQServer()"]
)
def test_killed_parent_leaves_no_server_behind(make: str, open_directory: Path) -> None:
    parent = start_or_skip(Elsewhere(open_directory, make, then="time.sleep(60)"))
    assert any_alive(parent.pids)
    parent.stop()
    assert holds_within(5, lambda: not any_alive(parent.pids))
    # Nobody is left to do this for a PostgreSQL whose parent was killed.
    for lock_file in open_directory.glob("*/data/postmaster.pid"):
        subprocess.run(["ipcrm", "-m", shared_memory_of(lock_file)], check=True)


@pytest.mark.parametrize("end", ["sys.exit(3)", "1 / 0"])
def test_ordinary_end_of_the_parent_stops_its_server(end: str, open_directory: Path) -> None:
    parent = start_or_skip(Elsewhere(open_directory, "RedisServer()", then=end))
    assert parent.process.wait(10) != 0
    assert not any_alive(parent.pids)
    assert list(open_directory.iterdir()) == []


def test_exit_of_a_forked_child_spares_the_server(open_directory: Path) -> None:
    fork = "os.fork() or sys.exit(); os.wait(); sys.exit(not server.connect().ping())"
    parent = start_or_skip(Elsewhere(open_directory, "RedisServer()", then=fork))
    assert parent.process.wait(10) == 0


# Redis and Valkey


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_persistent_redis_keeps_its_data_through_a_kill(flavour: Flavour) -> None:
    with start_or_skip(RedisServer(flavour, persistent=True)) as server:
        client_of(server).set("key", "value")
        server.kill()
        server.restart()
        assert client_of(server).get("key") == "value"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_other_redis_comes_back_empty(flavour: Flavour) -> None:
    with start_or_skip(RedisServer(flavour)) as server:
        client_of(server).set("key", "value")
        server.restart()
        assert client_of(server).get("key") is None


def test_persistent_redis_can_be_restarted_without_its_data() -> None:
    with start_or_skip(RedisServer(persistent=True)) as server:
        client_of(server).set("key", "value")
        server.restart(keep_data=False)
        assert client_of(server).get("key") is None


def test_redis_with_password_refuses_clients_without() -> None:
    with start_or_skip(RedisServer(password='p@ss "word"')) as server:
        assert client_of(server).ping()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)).ping()


def test_redis_with_tls_is_verified_by_its_own_url() -> None:
    with start_or_skip(RedisServer("redis", tls=True)) as server:
        url = server.url
        assert url.startswith(f"rediss://127.0.0.1:{server.port}/0?ssl_ca_certs=")
        assert client_of(server).ping()
        with pytest.raises(redis.ConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            redis.Redis(port=server.port, ssl=True, retry=Retry(NoBackoff(), 0)).ping()
        server.restart(keep_data=False)
        assert server.url == url
        assert client_of(server).ping()


def test_redis_on_a_unix_socket_opens_no_port() -> None:
    with start_or_skip(RedisServer(unix_socket=True)) as server:
        assert server.url.startswith("unix:///")
        assert client_of(server).ping()
        assert listening_addresses(server.pid) == set()


def test_paused_redis_answers_only_after_resume(valkey: RedisServer) -> None:
    impatient = redis.Redis.from_url(valkey.url, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
    valkey.pause()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    valkey.resume()
    assert impatient.ping()


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_sentinels_replace_a_killed_master(flavour: Flavour) -> None:
    with start_or_skip(SentinelSet(flavour=flavour, down_after_ms=500)) as sentinels:
        pids = sentinels.pids
        assert len(pids) == 6
        assert sentinels.url.startswith("sentinel://127.0.0.1:")
        assert all(listening_addresses(pid) == {"127.0.0.1"} for pid in pids)

        lost = sentinels.master
        client_of(lost).set("key", "value")
        assert client_of(lost).wait(2, 1_000) == 2
        successor = sentinels.kill_master()
        assert successor is sentinels.master
        assert successor is not lost
        assert client_of(successor).get("key") == "value"
        assert client_of(successor).set("key", "new")
    assert not any_alive(pids)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_cluster_replaces_a_killed_master(flavour: Flavour) -> None:
    with start_or_skip(RedisCluster(flavour=flavour, node_timeout_ms=1_000)) as cluster:
        pids = cluster.pids
        assert len(pids) == 6
        assert all(listening_addresses(pid) == {"127.0.0.1"} for pid in pids)

        address = cluster.url.removeprefix("redis+cluster://")
        with redis.RedisCluster.from_url(f"redis://{address}", decode_responses=True) as client:
            client.set("key", "value")
            lost = cluster.master_of("key")
            assert client_of(lost).wait(1, 1_000) == 1
            successor = cluster.kill_master_of("key")
            assert successor is cluster.master_of(b"key")
            assert successor is not lost
            assert client.get("key") == "value"
    assert not any_alive(pids)


def test_cluster_is_formed_anew_by_a_restart_without_data() -> None:
    with start_or_skip(RedisCluster(masters=1, replicas_per_master=1)) as cluster:
        url, master = cluster.url, cluster.master_of("key")
        client_of(master).set("key", "value")
        cluster.restart(keep_data=False)
        assert cluster.url == url
        assert client_of(cluster.master_of("key")).get("key") is None


# SQL


@pytest.mark.parametrize("make", [PostgresServer, MariaDBServer])
def test_committed_rows_survive_a_kill_and_go_with_the_data(make: Callable[[], Server]) -> None:
    with start_or_skip(make()) as server:
        sql(server, "CREATE TABLE facts (n INTEGER)", "INSERT INTO facts VALUES (42)")
        server.kill()
        server.restart()
        assert sql(server, "SELECT n FROM facts") == [(42,)]
        server.restart()
        assert sql(server, "SELECT n FROM facts") == [(42,)]
        server.restart(keep_data=False)
        with pytest.raises(sqlalchemy.exc.ProgrammingError):
            sql(server, "SELECT n FROM facts")


def test_paused_postgres_stops_answering_open_connections() -> None:
    with start_or_skip(PostgresServer()) as server:
        engine = sqlalchemy.create_engine(server.url)
        with engine.connect() as connection:
            connection.execute(sqlalchemy.text("SELECT 1"))
            answered = threading.Event()

            def ask() -> None:
                connection.execute(sqlalchemy.text("SELECT 2"))
                answered.set()

            server.pause()
            asking = threading.Thread(target=ask)
            asking.start()
            assert not answered.wait(0.3)
            server.resume()
            assert answered.wait(5)
            asking.join()
        engine.dispose()


@pytest.mark.skipif(shutil.which("ipcs") is None, reason="ipcs lists shared memory")
def test_killed_postgres_leaves_no_shared_memory() -> None:
    def segments() -> str:
        return subprocess.run(["ipcs", "-m"], check=True, capture_output=True, text=True).stdout

    with start_or_skip(PostgresServer()) as server:
        segment = shared_memory_of(server.data / "postmaster.pid")
        assert segment in segments().split()
        server.kill()
    assert segment not in segments().split()


# RabbitMQ


def test_rabbitmq_keeps_durable_messages_through_a_kill(rabbitmq: RabbitMQServer) -> None:
    connect: Any = partial(Connection, rabbitmq.url, transport_options={"confirm_publish": True})
    with connect() as connection, connection.SimpleQueue("durable") as queue:
        queue.put("message")
    rabbitmq.kill()
    rabbitmq.restart()
    with connect() as connection, connection.SimpleQueue("durable") as queue:
        assert queue.get(timeout=5).payload == "message"


def test_rabbitmq_and_its_port_mapper_listen_on_loopback_only(rabbitmq: RabbitMQServer) -> None:
    assert listening_addresses(rabbitmq.pid) == {"127.0.0.1"}
    assert listening_addresses(rabbitmq._port_mapper.pid) <= {"127.0.0.1", "::1"}


def test_rabbitmq_takes_its_port_mapper_along(rabbitmq: RabbitMQServer) -> None:
    pids = [rabbitmq.pid, *descendants(rabbitmq.pid), rabbitmq._port_mapper.pid]
    rabbitmq.stop()
    assert not any_alive(pids)


# The proxy


def dial(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=2)


def ping(connection: socket.socket) -> bytes:
    connection.sendall(b"PING\r\n")
    return connection.recv(100)


def test_proxy_passes_on_and_back(proxy: TcpProxy) -> None:
    with dial(proxy.port) as connection:
        assert ping(connection) == b"+PONG\r\n"


def test_proxy_delays_answers_until_healed(proxy: TcpProxy) -> None:
    with dial(proxy.port) as connection:
        proxy.delay(0.2)
        asked = time.monotonic()
        assert ping(connection) == b"+PONG\r\n"
        assert time.monotonic() - asked >= 0.2
        proxy.heal()
        asked = time.monotonic()
        assert ping(connection) == b"+PONG\r\n"
        assert time.monotonic() - asked < 0.2


def test_blackhole_swallows_on_old_and_new_connections(proxy: TcpProxy) -> None:
    with dial(proxy.port) as old:
        ping(old)
        proxy.blackhole()
        with dial(proxy.port) as new:
            for connection in (old, new):
                connection.settimeout(0.1)
                with pytest.raises(TimeoutError):
                    ping(connection)
            proxy.heal()
            for connection in (old, new):
                connection.settimeout(2)
                with pytest.raises(ConnectionResetError):
                    connection.recv(1)
    with dial(proxy.port) as fresh:
        assert ping(fresh) == b"+PONG\r\n"


def test_cut_resets_present_connections_only(proxy: TcpProxy) -> None:
    with dial(proxy.port) as old:
        ping(old)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            old.recv(1)
    with dial(proxy.port) as new:
        assert ping(new) == b"+PONG\r\n"


def test_refuse_spares_present_connections_and_heals_on_the_same_port(proxy: TcpProxy) -> None:
    port = proxy.port
    with dial(port) as old:
        ping(old)
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            dial(port)
        assert ping(old) == b"+PONG\r\n"
        proxy.heal()
        with dial(port) as new:
            assert ping(new) == b"+PONG\r\n"


def test_proxy_resets_clients_of_a_dead_server(proxy: TcpProxy, valkey: RedisServer) -> None:
    valkey.kill()
    with pytest.raises(ConnectionResetError), dial(proxy.port) as connection:
        connection.recv(1)
    valkey.restart()
    with dial(proxy.port) as connection:
        assert ping(connection) == b"+PONG\r\n"


def test_proxy_passes_on_the_end_of_a_connection(proxy: TcpProxy) -> None:
    with dial(proxy.port) as connection:
        connection.sendall(b"QUIT\r\n")
        assert connection.recv(100) == b"+OK\r\n"
        assert connection.recv(100) == b""


def test_stopped_proxy_is_closed(valkey: RedisServer) -> None:
    with TcpProxy(valkey.port) as proxy:
        port = proxy.port
        connection = dial(port)
        ping(connection)
    proxy.stop()
    with connection, pytest.raises(ConnectionResetError):
        connection.recv(1)
    with pytest.raises(ConnectionRefusedError):
        dial(port)
