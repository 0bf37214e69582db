"""The parts of the pages in Flower that need no browser."""

from __future__ import annotations

import asyncio
import threading
from base64 import b64encode
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import states
from celery.events.state import State
from flower import urls

from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.flower import install
from celery_singleton_lock.flower.asking import Asking, NoAnswer, Snapshot
from celery_singleton_lock.flower.handlers import Handler
from celery_singleton_lock.flower.installing import METRICS, PAGES
from celery_singleton_lock.flower.paging import part_of
from celery_singleton_lock.flower.schedule import shown_schedule
from celery_singleton_lock.flower.seen_runs import as_run
from celery_singleton_lock.flower.templates import OURS, WithOurPages


@pytest.fixture(autouse=True)
def flower_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = [*PAGES, METRICS]
    monkeypatch.setattr(urls, "handlers", [each for each in urls.handlers if each not in ours])
    monkeypatch.setattr(urls, "settings", dict(urls.settings))
    monkeypatch.setattr(states, "PRECEDENCE_LOOKUP", states.PRECEDENCE_LOOKUP)
    for name in ("DEAD-LETTERED", "LEASE-LOST"):
        monkeypatch.delitem(states.PRECEDENCE_LOOKUP, name, raising=False)


def test_pages_stand_before_what_catches_all_and_once() -> None:
    install()
    install()
    assert urls.handlers[-1 - len(PAGES) : -1] == PAGES
    assert urls.handlers[-1][0] == ".*"
    assert len(urls.handlers) == len(set(map(id, urls.handlers)))


def test_navigation_of_flower_gets_our_links_and_keeps_its_own() -> None:
    loader = WithOurPages(urls.settings["template_path"])
    text = loader._navigation()
    own = (Path(urls.settings["template_path"]) / "navbar.html").read_text()
    assert text.count("singleton-dead-letters") == 1
    assert text.index("reverse_url('broker')") < text.index("singleton-dead-letters")
    assert text.index("singleton-dead-letters") < text.index("theme-toggle")
    assert text.replace((OURS / "singleton_links.html").read_text(), "") == own


def test_dead_letter_is_shown_whichever_event_comes_first() -> None:
    install()
    assert state_after("received", "started", "failed", "dead-lettered") == "DEAD-LETTERED"
    assert state_after("received", "started", "dead-lettered", "failed") == "DEAD-LETTERED"
    assert state_after("dead-lettered", "failed", "received", "started", "succeeded") == "SUCCESS"


def test_successor_of_a_lost_run_is_shown() -> None:
    install()
    assert state_after("received", "started", "lease-lost") == "LEASE-LOST"
    assert state_after("received", "started", "lease-lost", "started") == "STARTED"
    assert state_after("received", "started", "lease-lost", "started", "succeeded") == "SUCCESS"


def state_after(*events: str) -> str:
    state = State()
    for clock, event in enumerate(events):
        fields = {"uuid": "run", "hostname": "w@h", "clock": clock, "timestamp": 100.0 + clock}
        state.event({"type": f"task-{event}", "local_received": 100.0 + clock, **fields})
    said = as_run(state.tasks["run"])
    assert said.seen.timestamp() >= 100
    return str(state.tasks["run"].state)


def test_error_of_a_run_that_flower_saw_has_no_password_of_a_url() -> None:
    task = State().get_or_create_task("run")[0]
    error = "ConnectionError('cannot reach redis://:s3cret@h:6379/0')"
    task.event("failed", 100.0, 100.0, {"exception": error})
    assert as_run(task).error == "ConnectionError('cannot reach redis://:***@h:6379/0')"


# Who may


def handler(user: Any = True, login: str = "", *, api: bool = True, **options: Any) -> Any:
    given = {"read_only": False, "basic_auth": None, "auth": "", **options}
    return SimpleNamespace(
        application=SimpleNamespace(options=SimpleNamespace(**given)),
        unauthenticated_api=api,
        current_user=user,
        request=SimpleNamespace(headers={"Authorization": login}, remote_ip="10.0.0.7"),
    )


@pytest.mark.parametrize(
    ("who", "why_not"),
    [
        (handler(), ""),
        (handler(api=False), "Changes need a login"),
        (handler(api=False, basic_auth=["a:b"]), ""),
        (handler(api=False, auth=".*@example.com"), ""),
        (handler(read_only=True, basic_auth=["a:b"]), "read only"),
    ],
)
def test_changes_need_what_flowers_own_need(who: Any, why_not: str) -> None:
    said = Handler.why_not.fget(who)  # type: ignore[attr-defined]
    assert why_not in said
    assert bool(said) == bool(why_not)


@pytest.mark.parametrize(
    ("who", "name"),
    [
        (handler("ann@example.com", auth=".*"), "ann@example.com"),
        (handler(login="Basic " + b64encode(b"ann:p:w").decode(), basic_auth=["ann:p:w"]), "ann"),
        (handler(), "somebody at 10.0.0.7"),
    ],
)
def test_user_is_named_as_flower_knows_him(who: Any, name: str) -> None:
    assert Handler._user_name(who) == name


# Asking


def test_what_many_look_at_is_asked_for_once() -> None:
    numbers = count(1)

    async def look() -> list[int]:
        snapshot = Snapshot(Asking(), lambda: next(numbers))
        first = await asyncio.gather(*(snapshot.get() for _ in range(10)))
        snapshot.forget()
        return [*first, await snapshot.get()]

    assert asyncio.run(look()) == [1] * 10 + [2]


def test_what_hangs_is_told_and_not_begun_again() -> None:
    begun, go_on = [], threading.Event()

    def hang() -> str:
        begun.append(1)
        assert go_on.wait(20)
        return "at last"

    async def look() -> str:
        snapshot = Snapshot(Asking(patience_s=0.05), hang)
        for _ in range(3):
            with pytest.raises(NoAnswer, match=r"no answer within 0\.05 seconds"):
                await snapshot.get()
        go_on.set()
        while True:
            try:
                return await snapshot.get()
            except NoAnswer:
                continue

    assert asyncio.run(look()) == "at last"
    assert begun == [1]


def test_store_that_is_away_is_told_in_its_own_words() -> None:
    def away() -> None:
        raise StoreUnavailable("redis://h", "connection refused")

    async def look() -> None:
        with pytest.raises(NoAnswer, match="connection refused"):
            await Snapshot(Asking(), away).get()

    asyncio.run(look())


# Words and pages


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("<crontab: */5 * * * * (m/h/dM/MY/d)>", "*/5 * * * *"),
        ("<freq: 30.00 seconds>", "every 30 seconds"),
        ("<freq: 1.50 minutes>", "every 1.50 minutes"),
        ("<once: 2026-01-01T00:00:00+00:00>", "once, 2026-01-01T00:00:00+00:00"),
        ("a schedule of its own", "a schedule of its own"),
    ],
)
def test_schedule_is_shown_without_what_is_the_same_for_all(said: str, shown: str) -> None:
    assert shown_schedule(said) == shown


def test_page_that_is_not_there_is_the_last_one() -> None:
    part = part_of(list(range(51)), 9, 25)
    assert (list(part.rows), part.page, part.count) == ([50], 3, 51)
    assert part_of([], 1, 25).page == 1
