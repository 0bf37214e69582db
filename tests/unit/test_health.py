"""The small HTTP server, and what makes a replica alive and ready."""

from __future__ import annotations

import json
import os
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http import HTTPStatus
from http.client import HTTPConnection

import pytest

from celery_singleton_lock.observability import http
from celery_singleton_lock.observability.health import Health, Pulse, Remembered
from celery_singleton_lock.observability.http import Answer, StatusServer, plain
from celery_singleton_lock.testing.servers.ports import free_port


def hello(accept: str) -> Answer:
    return plain(HTTPStatus.OK, f"hello {accept}")


def broken(_accept: str) -> Answer:
    raise ValueError("secret")


@pytest.fixture
def server() -> Iterator[StatusServer]:
    server = StatusServer("127.0.0.1:0", {"/hello": hello, "/broken": broken})
    server.start()
    assert server.wait_until_bound(10)
    yield server
    server.stop()


def ask(server: StatusServer, path: str, method: str = "GET") -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.request(method, path, headers={"Accept": "it"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


# The server


def test_pages_are_served_by_their_paths(server: StatusServer) -> None:
    assert ask(server, "/hello") == (200, "hello it")
    assert ask(server, "/hello?with=query") == (200, "hello it")
    assert ask(server, "/hello", "HEAD") == (200, "")
    assert ask(server, "/") == (404, "there are /broken, /hello\n")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_but_get_is_answered(server: StatusServer, method: str) -> None:
    assert ask(server, "/hello", method)[0] == HTTPStatus.NOT_IMPLEMENTED


def test_page_that_fails_tells_nothing_but_its_kind(
    server: StatusServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert ask(server, "/broken") == (500, "ValueError: see the log\n")
    assert "http_page_failed path=/broken" in caplog.text
    assert ask(server, "/hello")[0] == 200


def test_it_listens_where_it_was_told_and_nowhere_else(server: StatusServer) -> None:
    assert server.port is not None
    addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for address in addresses - {"127.0.0.1"}:
        with socket.socket() as probe:
            probe.settimeout(1)
            assert probe.connect_ex((address, server.port)) != 0


def test_silent_clients_do_not_keep_others_out(
    server: StatusServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http._Handler, "timeout", 0.5)
    assert server.port is not None
    silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(http.AT_ONCE)]
    # One more is turned away; those that say nothing are, after a while.
    for client in silent:
        client.settimeout(10)
        assert client.recv(1) == b""
        client.close()
    assert ask(server, "/hello")[0] == 200


def test_address_that_is_taken_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(http, "TRY_AGAIN_S", 0.05)
    port = free_port()
    first, second = (StatusServer(f"127.0.0.1:{port}", {"/hello": hello}) for _ in range(2))
    first.start()
    assert first.wait_until_bound(10)
    second.start()
    assert not second.wait_until_bound(0.3)
    told = [each for each in caplog.messages if "http_not_served" in each]
    assert len(told) == 1
    assert "singleton_http" in told[0]
    first.stop()
    assert second.wait_until_bound(10)
    assert ask(second, "/hello")[0] == 200
    second.stop()


def test_child_does_not_keep_the_port(server: StatusServer) -> None:
    port, (ready, is_ready), (end, may_end) = server.port, os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.write(is_ready, b"x")
        os.read(end, 1)
        os._exit(0)
    os.read(ready, 1)
    server.stop()
    again = StatusServer(f"127.0.0.1:{port}", {"/hello": hello})
    again.start()
    try:
        # Once more after five seconds: on a busy machine a connection may have got the port meanwhile.
        assert again.wait_until_bound(20), "the child has it"
    finally:
        os.write(may_end, b"x")
        os.waitpid(child, 0)
        again.stop()
        for each in (ready, is_ready, end, may_end):
            os.close(each)


def test_ipv6_address_is_served() -> None:
    server = StatusServer("[::1]:0", {"/hello": hello})
    server.start()
    if not server.wait_until_bound(2):
        pytest.skip("no IPv6 here")
    with urllib.request.urlopen(f"http://[::1]:{server.port}/hello", timeout=10) as answer:
        assert answer.status == 200
    server.stop()


# Health


def test_what_is_not_alive_is_not_ready_and_says_why() -> None:
    health = Health()
    health.alive_if("tick", lambda: "stuck")
    health.ready_if("store", lambda: "away")
    assert health.why_not_alive() == ["stuck"]
    assert health.why_not_ready() == ["stuck", "away"]
    page = health.readyz("")
    assert page.status == HTTPStatus.SERVICE_UNAVAILABLE
    assert json.loads(page.body) == {"ready": False, "reasons": ["stuck", "away"]}


def test_waiting_for_the_store_is_alive_and_not_ready() -> None:
    health = Health()
    health.ready_if("store", lambda: "away")
    assert health.livez("").status == HTTPStatus.OK
    assert health.readyz("").status == HTTPStatus.SERVICE_UNAVAILABLE


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_pulse_that_stays_away_is_stuck() -> None:
    clock = Clock()
    pulse = Pulse("the tick", 60, clock)
    assert pulse.why_stuck() is None, "it has not begun"
    pulse.beat()
    clock.now += 60
    assert pulse.why_stuck() is None
    clock.now += 1
    assert pulse.why_stuck() == "the tick has been stuck for 61 s"
    pulse.beat(next_in_s=300)
    clock.now += 360
    assert pulse.why_stuck() is None, "it was not expected earlier"
    clock.now += 1
    assert pulse.why_stuck() is not None
    pulse.rest()
    assert pulse.why_stuck() is None


def test_answer_is_remembered_for_a_while() -> None:
    asked: list[int] = []

    def ask() -> int:
        asked.append(1)
        return len(asked)

    remembered = Remembered(ask, 60)
    threads = [threading.Thread(target=remembered) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert remembered() == 1
    assert Remembered(ask, -1)() == 2
