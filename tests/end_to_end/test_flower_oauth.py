"""The pages behind a login by OAuth: Flower's own for Okta, with a provider on this machine."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from playwright.sync_api import Browser, expect

from celery_singleton_lock.testing.servers import RedisServer
from tests.support import until

from .flowers import FlowerServer, Visitor, browsing
from .test_flower_access import CHANGES, PATHS, PAUSE, is_paused, token_of

pytestmark = pytest.mark.xdist_group("flower")


class Provider(BaseHTTPRequestHandler):
    """Says of everybody who comes that it is `user`, and takes its own codes only."""

    user = "nobody@example.com"

    def do_GET(self) -> None:
        at = urlsplit(self.path)
        if at.path == "/v1/authorize":
            asked = parse_qs(at.query)
            back = urlencode({"code": "a code", "state": asked["state"][0]})
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri'][0]}?{back}")
            self.end_headers()
        elif self.headers["Authorization"] == "Bearer a token":
            self._say({"email": Provider.user, "email_verified": True})
        else:
            self.send_error(401)

    def do_POST(self) -> None:
        sent = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
        assert (sent["code"], sent["client_secret"]) == (["a code"], ["s3cret"])
        self._say({"access_token": "a token"})

    def _say(self, what: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(what).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def flower(redis: RedisServer, provider: str) -> Iterator[FlowerServer]:
    login = "--auth=alice@example.com|bob@example.com"
    with FlowerServer(redis.url, login, okta=f"http://{provider}", may_change=False) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


def test_nothing_is_shown_or_changed_without_a_login(flower: FlowerServer, redis: RedisServer) -> None:
    for path in PATHS:
        status, text, headers = flower.ask("GET", path)
        assert (status, text) == (302, ""), path
        assert headers["Location"].startswith("/login?")
    token = "2|00000000|00000000000000000000000000000000|1700000000"
    for path in CHANGES:
        cookie = {"Cookie": f"_xsrf={token}; user=alice@example.com", "X_XSRFToken": token}
        assert flower.ask("POST", path, PAUSE, **cookie)[0] == 403, path
    assert not is_paused(redis)


def test_who_is_known_looks_and_changes_by_name(
    browser: Browser, flower: FlowerServer, redis: RedisServer, provider: str
) -> None:
    Provider.user = "alice@example.com"
    visitor = Visitor(browser, flower)
    # Flower forgets over this login where she wanted to go.
    visitor.page.goto(f"{flower.url}/singleton/schedule")
    visitor.page.wait_for_url(f"{flower.url}/")
    visitor.open("/singleton/schedule")
    visitor.press("Pause stock: count", why="stocktaking")
    assert visitor.told() == "stock: count is paused."
    assert is_paused(redis)
    expect(visitor.row("stock: count")).to_contain_text("by alice@example.com in Flower: stocktaking")
    until(lambda: "entry_paused who='alice@example.com in Flower'" in flower.log)

    cookies = {each["name"]: each["value"] for each in visitor.context.cookies()}
    login = "; ".join(f"{name}={value}" for name, value in cookies.items())
    assert flower.ask("POST", CHANGES[1], PAUSE, Cookie=login)[0] == 403, "without the token of a page"
    token = token_of(flower, Cookie=f"user={cookies['user']}")
    headers = {"Cookie": f"user={cookies['user']}; _xsrf={token}", "X_XSRFToken": token}
    assert flower.ask("POST", CHANGES[1], PAUSE, **headers)[0] == 200
    assert not is_paused(redis)
    visitor.hosts.discard(provider)
    visitor.leave()


def test_who_is_not_on_the_list_is_turned_away(browser: Browser, flower: FlowerServer) -> None:
    Provider.user = "mallory@example.com"
    context = browser.new_context()
    page = context.new_page()
    answer = page.goto(f"{flower.url}/singleton/locks")
    assert answer is not None
    assert answer.status == 403
    expect(page.locator("body")).to_contain_text("Access denied")
    assert "user" not in {each["name"] for each in context.cookies()}
    context.close()
