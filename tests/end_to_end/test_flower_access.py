"""The pages behind Flower's login and prefix, and who may change something there."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from playwright.sync_api import Browser, expect

from celery_singleton_lock import open_schedule
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of
from tests.support import until

from .flower_shop import open_shop
from .flowers import FlowerServer, Visitor, browsing

pytestmark = pytest.mark.xdist_group("flower")

CUSTOMERS = 10_000
LOGIN = "Basic " + b64encode(b"alice:s3cret").decode()
PATHS = (
    "/singleton/schedule", "/singleton/schedule/data", "/singleton/entry", "/singleton/entry/data",
    "/singleton/locks", "/singleton/locks/data", "/singleton/runs", "/singleton/runs/data",
    "/singleton/contention/data", "/singleton/dead-letters", "/singleton/dead-letters/data",
    "/singleton/dead-letters/letter",
)  # fmt: skip
CHANGES = (
    "/singleton/schedule/pause", "/singleton/schedule/resume", "/singleton/schedule/trigger",
    "/singleton/locks/unlock", "/singleton/dead-letters/replay", "/singleton/dead-letters/delete",
)  # fmt: skip
PAUSE = json.dumps({"entry": "stock: count", "why": "a test"})


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def flowers(redis: RedisServer) -> Iterator[list[FlowerServer]]:
    """One with a login, a prefix and a large schedule, as its own users start it; and one without a
    login that is open to nobody's changes."""
    login = ("--basic-auth=bob:other,alice:s3cret",)
    all_of_them = [
        FlowerServer(redis.url, *login, customers=CUSTOMERS, stock=True, prefix="/ops/flower"),
        FlowerServer(redis.url, may_change=False),
    ]
    with ThreadPoolExecutor() as threads:
        list(threads.map(FlowerServer.start, all_of_them))
    yield all_of_them
    for flower in all_of_them:
        flower.stop()


@pytest.fixture
def closed(flowers: list[FlowerServer]) -> FlowerServer:
    return flowers[0]


@pytest.fixture
def open_to_look(flowers: list[FlowerServer]) -> FlowerServer:
    return flowers[1]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture
def alice(browser: Browser, closed: FlowerServer) -> Iterator[Visitor]:
    login = {"username": "alice", "password": "s3cret"}
    visitor = Visitor(browser, closed, http_credentials=login)
    yield visitor
    visitor.leave()


def is_paused(redis: RedisServer) -> bool:
    app = open_shop(redis.url)
    try:
        return open_schedule(app).entry("stock: count").is_paused
    finally:
        parts_of(app).store.close()


def token_of(flower: FlowerServer, **headers: str) -> str:
    _, _, answered = flower.ask("GET", "/singleton/schedule", **headers)
    return answered["Set-Cookie"].partition("=")[2].partition(";")[0]


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_a_login(closed: FlowerServer, path: str) -> None:
    assert closed.ask("GET", path)[0] == 401
    wrong = "Basic " + b64encode(b"alice:guess").decode()
    assert closed.ask("GET", path, Authorization=wrong)[0] == 401


@pytest.mark.parametrize("path", CHANGES)
def test_nothing_is_changed_without_a_login(closed: FlowerServer, path: str) -> None:
    token = token_of(closed, Authorization=LOGIN)
    cookie = {"Cookie": f"_xsrf={token}", "X_XSRFToken": token}
    assert closed.ask("POST", path, PAUSE, **cookie)[0] in (401, 403)


@pytest.mark.parametrize("path", CHANGES)
def test_nothing_is_changed_without_a_token(closed: FlowerServer, path: str) -> None:
    status, text, _ = closed.ask("POST", path, PAUSE, Authorization=LOGIN)
    assert status == 403
    assert "_xsrf" in text


def test_another_site_changes_nothing_even_with_a_token(
    closed: FlowerServer, redis: RedisServer
) -> None:
    token = token_of(closed, Authorization=LOGIN)
    headers = {"Authorization": LOGIN, "Cookie": f"_xsrf={token}", "X_XSRFToken": token}
    elsewhere = {**headers, "Sec_Fetch_Site": "cross-site"}
    assert closed.ask("POST", CHANGES[0], PAUSE, **elsewhere)[0] == 403
    assert not is_paused(redis)
    assert closed.ask("POST", CHANGES[0], PAUSE, **headers)[0] == 200
    assert is_paused(redis)
    assert closed.ask("POST", CHANGES[1], PAUSE, **headers)[0] == 200


@pytest.mark.parametrize("body", ["", "[]", "{}", '{"entry": 7}', '{"entry": " "}'])
def test_request_that_says_nothing_is_refused_in_words(closed: FlowerServer, body: str) -> None:
    token = token_of(closed, Authorization=LOGIN)
    headers = {"Authorization": LOGIN, "Cookie": f"_xsrf={token}", "X_XSRFToken": token}
    status, text, _ = closed.ask("POST", CHANGES[0], body, **headers)
    assert status == 400
    assert json.loads(text)["error"]


def test_ten_thousand_entries_are_paged_and_searched_below_a_prefix(alice: Visitor) -> None:
    page = alice.open("/singleton/schedule")
    info, rows = page.locator("#singleton-info"), page.locator("#singleton-table tbody tr")
    expect(info).to_have_text("Showing 1 to 25 of 10,009")
    expect(rows).to_have_count(25)
    page.get_by_role("button", name="Next", exact=True).click()
    expect(info).to_have_text("Showing 26 to 50 of 10,009")
    page.get_by_role("button", name="401", exact=True).click()
    expect(info).to_have_text("Showing 10,001 to 10,009 of 10,009")
    page.get_by_label("Rows per page").select_option("100")
    expect(rows).to_have_count(100)
    page.get_by_role("searchbox").fill("customer 0777")
    expect(info).to_have_text("Showing 1 to 10 of 10")
    page.get_by_role("link", name="customer 07770: bill").click()
    expect(page.locator("#singleton-entry-name")).to_have_text("customer 07770: bill")
    assert "/ops/flower/singleton/entry" in page.url
    for name in ("Runs", "Locks", "Dead letters"):
        page.get_by_role("link", name=name).click()
        expect(page.locator("#singleton-status")).to_have_text("Live")
        assert page.url.startswith(f"{alice.flower.url}/singleton/")


def test_page_of_ten_thousand_is_answered_in_a_moment(closed: FlowerServer) -> None:
    closed.ask("GET", "/singleton/schedule/data", Authorization=LOGIN)
    began = time.monotonic()
    for page in range(1, 11):
        path = f"/singleton/schedule/data?page={page}&sort=next&search=bill"
        status, text, _ = closed.ask("GET", path, Authorization=LOGIN)
        assert (status, len(json.loads(text)["rows"])) == (200, 25)
    assert (time.monotonic() - began) / 10 < 2


def test_change_is_audited_with_the_name_of_the_login(
    alice: Visitor, closed: FlowerServer, redis: RedisServer
) -> None:
    alice.open("/singleton/schedule?search=stock")
    alice.press("Pause stock: count", why="stocktaking")
    assert alice.told() == "stock: count is paused."
    assert is_paused(redis)
    expect(alice.row("stock: count")).to_contain_text("by alice in Flower: stocktaking")
    alice.press("Resume stock: count")
    assert alice.told() == "stock: count goes on, from its next slot."
    said = "entry_paused who='alice in Flower' entry='stock: count' why='stocktaking'"
    until(lambda: said in closed.log)


def test_without_the_right_buttons_say_why_and_do_nothing(
    browser: Browser, open_to_look: FlowerServer, redis: RedisServer
) -> None:
    visitor = Visitor(browser, open_to_look)
    page = visitor.open("/singleton/schedule")
    expect(page.locator("#singleton-why-not")).to_contain_text("Changes need a login")
    expect(page.get_by_role("button", name="Pause stock: count")).to_be_disabled()
    visitor.leave()
    token = token_of(open_to_look)
    for path in CHANGES:
        status, text, _ = open_to_look.ask(
            "POST", path, PAUSE, Cookie=f"_xsrf={token}", X_XSRFToken=token
        )
        assert status == 403
        assert "Changes need a login" in json.loads(text)["error"]
    assert not is_paused(redis)
