"""The pages in Flower, as somebody sees and uses them who is at a browser."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery
from kombu.message import Message
from playwright.sync_api import Browser, Route, expect
from prometheus_client.parser import text_string_to_metric_families

from celery_singleton_lock import SingletonTask, open_schedule
from celery_singleton_lock.core.models import Granted, Lease, LeaseRequest, RecordState
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RedisServer
from celery_singleton_lock.worker.parts import parts_of
from tests.integration.workers import Gate, define, working
from tests.support import until

from .flower_shop import EVIL, open_shop
from .flowers import FlowerServer, Visitor, browsing

pytestmark = pytest.mark.xdist_group("flower")

PAGES = ("/singleton/schedule", "/singleton/runs", "/singleton/locks", "/singleton/dead-letters")
HOUR = timedelta(hours=1)
NEVER = datetime.max.replace(tzinfo=UTC)


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def flower(redis: RedisServer) -> Iterator[FlowerServer]:
    with FlowerServer(redis.url) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def app(redis: RedisServer) -> Iterator[Celery]:
    app = open_shop(redis.url)
    yield app
    dead_letters_of(app).close()
    parts_of(app).store.close()
    app.close()


@pytest.fixture
def visitor(browser: Browser, flower: FlowerServer) -> Iterator[Visitor]:
    visitor = Visitor(browser, flower, viewport={"width": 1280, "height": 900})
    yield visitor
    visitor.leave()


def hold(app: Celery, key: str, **note: Any) -> Lease:
    [answer] = parts_of(app).store.acquire([LeaseRequest(key, f"owner of {key}", HOUR, note=note)])
    assert isinstance(answer, Granted), answer
    return answer.lease


def send_letter(app: Celery, run: str, task: str = "shop.pay", error: str = "no money") -> str:
    headers = {"id": run, "task": task, "singleton_entry": "payments: collect"}
    body = json.dumps([["INV-1"], {}, {}])
    message = Message(
        body=body.encode(),
        headers=headers,
        content_type="application/json",
        content_encoding="utf-8",
        delivery_info={"exchange": "", "routing_key": "celery"},
        properties={},
    )
    letter = Letter.about(message, "failed", exception=ValueError(error), attempts=3, worker="w1@shop")
    dead_letters_of(app).send(letter)
    return letter.id


def letters(app: Celery) -> list[str]:
    return [letter.id for letter in dead_letters_of(app).list()]


def test_pages_are_in_the_navigation_beside_flowers_own(visitor: Visitor) -> None:
    page = visitor.open("/singleton/schedule")
    links = page.locator(".app-nav").first.get_by_role("link").all_inner_texts()
    assert links == ["Workers", "Tasks", "Broker", "Schedule", "Runs", "Locks", "Dead letters"]
    page.get_by_role("link", name="Locks").click()
    expect(page.locator(".nav-link.active")).to_have_text("Locks")
    page.get_by_role("link", name="Broker").click()
    expect(page.locator(".nav-link.active")).to_have_text("Broker")


# The schedule


def test_entry_is_paused_with_a_reason_and_resumed(
    visitor: Visitor, app: Celery, flower: FlowerServer
) -> None:
    visitor.open("/singleton/schedule")
    visitor.press("Pause stock: count", why="the stock is being moved")
    assert visitor.told() == "stock: count is paused."
    state = open_schedule(app).entry("stock: count")
    assert (state.is_paused, state.paused_why) == (True, "the stock is being moved")
    row = visitor.row("stock: count")
    expect(row).to_contain_text("by somebody at 127.0.0.1 in Flower: the stock is being moved")

    visitor.page.get_by_role("button", name="Paused").click()
    expect(visitor.page.locator("#singleton-table tbody tr")).to_have_count(1)
    visitor.press("Resume stock: count")
    assert visitor.told() == "stock: count goes on, from its next slot."
    assert not open_schedule(app).entry("stock: count").is_paused
    expect(visitor.page.locator("#singleton-table")).to_contain_text("Nothing matches.")

    until(lambda: "entry_paused who='somebody at 127.0.0.1 in Flower'" in flower.log)
    until(lambda: "entry_resumed who='somebody at 127.0.0.1 in Flower'" in flower.log)


def test_nothing_is_done_when_somebody_thinks_better_of_it(visitor: Visitor, app: Celery) -> None:
    page = visitor.open("/singleton/schedule")
    page.get_by_role("button", name="Pause nightly report").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Pause nightly report").click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert not open_schedule(app).entry("nightly report").is_paused


def test_entry_is_triggered(visitor: Visitor, app: Celery) -> None:
    visitor.open("/singleton/schedule")
    visitor.press("Run now prices: fetch")
    said = visitor.told()
    assert "prices: fetch runs now, as " in said
    assert "No beat is running: it waits for one." in said
    [job] = open_schedule(app).jobs()
    assert (job.kind, job.entry) == ("trigger", "prices: fetch")


def test_schedule_is_live_searched_and_sorted(visitor: Visitor, app: Celery) -> None:
    page = visitor.open("/singleton/schedule")
    open_schedule(app).add("added while it is open", "shop.mail", 60.0)
    expect(visitor.row("added while it is open")).to_contain_text("added at run time")
    expect(page.locator("#singleton-card-entries")).to_have_text("10")
    page.get_by_role("searchbox").fill("MAIL")
    expect(page.locator("#singleton-table tbody tr")).to_have_count(2)
    assert "search=MAIL" in page.url, "so that it can be sent to somebody"
    page.reload()
    expect(page.locator("#singleton-table tbody tr")).to_have_count(2)
    page.get_by_role("searchbox").fill("")
    page.get_by_role("button", name="Next first").click()
    last = max(open_schedule(app).entries(), key=lambda entry: entry.next_slot or NEVER)
    expect(page.locator("#singleton-table tbody tr").last).to_contain_text(last.name)
    open_schedule(app).remove("added while it is open")
    expect(page.locator("#singleton-card-entries")).to_have_text("9")
    expect(page.locator("#singleton-note")).to_contain_text("No beat is running")


# Locks


def test_lock_is_seen_and_taken_away_with_a_reason(
    visitor: Visitor, app: Celery, flower: FlowerServer
) -> None:
    lease = hold(app, "lock:import", host="db7", pid=4711)
    page = visitor.open("/singleton/locks")
    row = visitor.row("lock:import")
    expect(row).to_contain_text("db7 pid 4711")
    expect(row).to_contain_text(str(lease.fence))
    visitor.press("Unlock lock:import")
    assert page.evaluate("!document.querySelector('#singleton-why').checkValidity()"), "needs a reason"
    page.get_by_role("dialog").get_by_role("textbox").fill("db7 is gone")
    page.get_by_role("dialog").locator("button[value=yes]").click()
    assert visitor.told() == "lock:import is free. db7 pid 4711 is told at its next renewal."
    [record] = parts_of(app).store.peek(["lock:import"])
    assert record is not None
    assert record.state is RecordState.FREE
    assert record.note["reason"] == "db7 is gone"
    expect(row).to_have_count(0)
    until(lambda: "unlocked who='somebody at 127.0.0.1 in Flower' key='lock:import'" in flower.log)


def test_overdue_lock_stands_out(visitor: Visitor, app: Celery) -> None:
    lease = hold(app, "task:shop.report", task="shop.report", run="run-1", expect_within=0)
    visitor.open("/singleton/locks?show=overdue")
    expect(visitor.row("task:shop.report")).to_contain_text("overdue by")
    expect(visitor.page.locator("#singleton-card-overdue")).to_have_text("1")
    parts_of(app).store.force_release(lease.key, who="test", why="over")


# Dead letters


def test_letter_is_read_and_replayed(visitor: Visitor, app: Celery, redis: RedisServer) -> None:
    letter = send_letter(app, "run-of-the-letter", error="the bank is closed")
    page = visitor.open("/singleton/dead-letters")
    page.get_by_role("button", name="ValueError: the bank is closed").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("run-of-the-letter")
    expect(dialog).to_contain_text('[["INV-1"], {}, {}]')
    dialog.get_by_role("button", name="Close").click()
    visitor.press("Replay shop.pay")
    assert visitor.told() == "Replayed: 1."
    assert letter not in letters(app)
    client: Any = redis.connect()
    sent = json.loads(client.lpop("celery"))
    assert (sent["headers"]["id"], sent["headers"]["singleton_generation"]) == ("run-of-the-letter", 1)
    expect(page.locator("#singleton-table")).to_contain_text("There are no dead letters.")


def test_chosen_letters_are_deleted_and_no_others(
    visitor: Visitor, app: Celery, flower: FlowerServer
) -> None:
    ids = [send_letter(app, f"run-{number}", error=f"error {number}") for number in range(3)]
    page = visitor.open("/singleton/dead-letters")
    for error in ("error 0", "error 2"):
        visitor.row(error).get_by_role("checkbox").check()
    expect(page.locator("#singleton-chosen-count")).to_have_text("2 chosen")
    visitor.press("Delete")
    assert visitor.told() == "Deleted: 2."
    assert letters(app) == [ids[1]]
    visitor.press("Delete shop.pay")
    assert visitor.told() == "Deleted: 1."
    assert letters(app) == []
    until(lambda: "dead_letters_purged who='somebody at 127.0.0.1 in Flower'" in flower.log)


# Runs


def test_runs_are_seen_as_they_are_and_so_are_their_states_in_flowers_list(
    visitor: Visitor, app: Celery
) -> None:
    gate = Gate()

    @define(app, base=SingletonTask, name="shop.exclusive", unique_on=(), lock_ttl=3)
    def exclusive() -> None:
        gate.enter()

    @define(app, base=SingletonTask, name="shop.broken")
    def broken() -> None:
        raise ValueError("broken for good")

    def of(entry: str) -> dict[str, str]:
        return {"singleton_entry": entry, "singleton_slot": datetime.now(UTC).isoformat()}

    with working(app), gate:
        first = exclusive.apply_async(headers=of("stock: count"))
        assert gate.wait_for_entry()
        second = exclusive.apply_async(headers=of("prices: fetch"))
        dead = broken.apply_async(headers=of("prices: fetch"))
        page = visitor.open("/singleton/runs?window=900")
        expect(visitor.row(first.id[:8])).to_contain_text("running")
        expect(visitor.row(first.id[:8])).to_contain_text("stock: count")
        expect(visitor.row(second.id[:8])).to_contain_text("overlap")
        expect(visitor.row(dead.id[:8])).to_contain_text("dead letter")
        expect(visitor.row(dead.id[:8])).to_contain_text("broken for good")
        expect(page.locator("#singleton-timeline rect")).to_have_count(3)
        page.get_by_role("button", name="Skipped").click()
        expect(page.locator("#singleton-table tbody tr")).to_have_count(1)

        # The run is taken from its worker, which notices when the body ends.
        parts_of(app).store.force_release(f"run:{first.id}", who="test", why="to lose it")
        time.sleep(1.2)  # a renewal, a third of the ttl later, is refused
        gate.open()
        # For a moment only: its successor begins soon.
        until(lambda: '"LEASE-LOST"' in visitor.flower.ask("GET", f"/api/task/info/{first.id}")[1])
        page.goto(visitor.flower.url + "/tasks")
        for run, state in ((second, "SKIPPED"), (dead, "DEAD-LETTERED")):
            expect(page.locator("#tasks-table tbody tr", has_text=run.id)).to_contain_text(state)
        page.goto(f"{visitor.flower.url}/singleton/runs?search={first.id}")
        expect(visitor.row(first.id[:8])).to_contain_text("succeeded")
        page.get_by_role("button", name="Lease lost").click()
        expect(visitor.row(first.id[:8])).to_contain_text("an execution lost its lease")
        page.get_by_role("searchbox").fill("")
        expect(page.locator("#singleton-table tbody tr")).to_have_count(1)
    [letter] = letters(app)
    dead_letters_of(app).purge(ids=[letter])

    visitor.open("/singleton/entry?name=stock%3A%20count")
    expect(page.locator("#singleton-took rect.singleton-succeeded")).to_have_count(1)
    expect(page.locator("#singleton-lag rect")).to_have_count(1)
    expect(page.locator("#singleton-facts .singleton-cell")).to_have_count(1)
    expect(page.locator("#singleton-note")).to_contain_text("Runs are those that Flower saw itself")
    visitor.open("/singleton/locks")
    expect(page.locator("#singleton-contention .singleton-skipped")).to_have_count(1)
    visitor.open("/singleton/schedule?search=stock")
    expect(visitor.row("stock: count").locator(".singleton-cell")).to_have_count(1)


# Metrics


def test_metrics_of_flower_tell_what_it_knows_of_runs_and_of_the_schedule(
    app: Celery, flower: FlowerServer
) -> None:
    def numbers() -> dict[str, float]:
        families = text_string_to_metric_families(flower.ask("GET", "/metrics")[1])
        return {
            "".join((each.name, *sorted(each.labels.values()))): each.value
            for family in families
            for each in family.samples
        }

    open_schedule(app).pause("nightly report")
    until(lambda: numbers()["flower_singleton_entriespaused"] == 1)
    before = numbers()
    states = ("on time", "late", "paused")
    assert sum(before[f"flower_singleton_entries{state}"] for state in states) == 9
    assert before["flower_singleton_beat_members"] == 0
    assert before["flower_singleton_store_up"] == 1
    open_schedule(app).resume("nightly report")

    @define(app, name="shop.plain")
    def plain() -> None: ...

    with working(app):
        for _ in range(2):
            app.send_task("shop.clean_up", task_id="one run, sent twice")
        plain.delay()
        until(lambda: numbers().get("flower_singleton_copies_ignored_totalshop.clean_up") == 1)
    after = numbers()
    assert after["flower_singleton_runs_ended_totalshop.clean_upsucceeded"] == 1
    assert after["flower_singleton_run_seconds_countshop.clean_up"] == 1
    assert not [name for name in after if "singleton" in name and "plain" in name]
    assert [name for name in after if name.startswith("flower_events_total") and "plain" in name]
    assert not [name for name in after if name.startswith("singleton_")], "those are of the workers"


# What may never happen


def test_names_are_text_on_every_page(visitor: Visitor, app: Celery) -> None:
    lease = hold(app, f"lock:{EVIL}", host=EVIL)
    send_letter(app, EVIL, task=EVIL, error=EVIL)
    open_schedule(app).pause(EVIL, why=EVIL)
    with working(app):
        app.send_task(EVIL, headers={"singleton_entry": EVIL, "singleton_slot": EVIL})
        for path in PAGES:
            visitor.open(path)
            expect(visitor.row(EVIL)).to_contain_text(EVIL)
    visitor.open("/singleton/dead-letters?search=" + "%3Cscript%3E")
    visitor.page.locator(".singleton-read").first.click()
    expect(visitor.page.get_by_role("dialog")).to_contain_text(EVIL)
    page = visitor.open("/singleton/entry?name=%3Cscript%3Ealert(1)%3C%2Fscript%3E")
    expect(page.locator("#singleton-entry-name")).to_have_text(EVIL)
    expect(page.locator("#singleton-runs")).to_contain_text(EVIL)
    visitor.press(f"Resume {EVIL}")
    assert visitor.told() == f"{EVIL} goes on, from its next slot."
    parts_of(app).store.force_release(lease.key, who="test", why="over")
    dead_letters_of(app).purge(everything=True)


def test_pages_need_no_script_or_style_but_their_own(visitor: Visitor) -> None:
    """With the strictest policy that a proxy may add: nothing inline, nothing from elsewhere."""

    def add_policy(route: Route) -> None:
        answer = route.fetch()
        policy = "default-src 'self'; img-src 'self' data:"
        route.fulfill(response=answer, headers={**answer.headers, "Content-Security-Policy": policy})

    visitor.page.route("**/singleton/*", add_policy)
    for path in PAGES:
        visitor.open(path)
    assert visitor.troubles == []


@pytest.mark.parametrize("path", [*PAGES, "/singleton/entry?name=stock%3A%20count"])
def test_page_fits_a_phone(browser: Browser, flower: FlowerServer, app: Celery, path: str) -> None:
    key = "lock:" + "a-key-without-a-place-to-break-" * 5
    lease, letter = hold(app, key), send_letter(app, "run", error="x" * 300)
    visitor = Visitor(browser, flower, viewport={"width": 390, "height": 844}, has_touch=True)
    page = visitor.open(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    # Nor is anything cut off.
    cells = "[...document.querySelectorAll('table td, table td *')]"
    rights = f"{cells}.map((each) => each.getBoundingClientRect().right)"
    assert page.evaluate(f"Math.max(0, ...{rights})") <= 390
    page.get_by_role("button", name="Toggle navigation").click()
    expect(page.get_by_role("link", name="Dead letters")).to_be_visible()
    visitor.leave()
    parts_of(app).store.force_release(lease.key, who="test", why="over")
    dead_letters_of(app).purge(ids=[letter])


def test_store_that_hangs_is_told_and_holds_up_nothing(
    visitor: Visitor, redis: RedisServer, flower: FlowerServer
) -> None:
    page = visitor.open("/singleton/schedule")
    redis.pause()
    try:
        expect(page.locator("#singleton-trouble")).to_contain_text("What you see may be old.")
        expect(page.locator("#singleton-status")).to_have_text("No answer")
        expect(visitor.row("stock: count")).to_be_visible()
        began = time.monotonic()
        assert flower.ask("GET", "/workers")[0] == 200
        assert time.monotonic() - began < 2
        text = flower.ask("GET", "/metrics")[1]
        assert time.monotonic() - began < 8
        assert "flower_singleton_store_up 0.0" in text
        assert "# HELP flower_events_total" in text, "Flower's own"
    finally:
        redis.resume()
    expect(page.locator("#singleton-status")).to_have_text("Live")
    expect(page.locator("#singleton-trouble")).to_be_hidden()
