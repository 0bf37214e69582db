"""Working the queue of letters: nothing is lost, moved or run twice by it, even if interrupted."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kombu.connection import Connection

from celery_singleton_lock.core.errors import BrokerUnavailable, ConfigurationError
from celery_singleton_lock.recovery.browsing import browsing
from celery_singleton_lock.recovery.dead_letters import Choice, DeadLetters, Pace
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy
from tests.integration.letter_brokers import (
    QUEUE,
    app_on,
    forget,
    letters_on,
    plain_letter,
    received,
    through,
    waiting,
)


def filled(dead_letters: DeadLetters, url: str, count: int, task: str = "proj.report") -> list[Letter]:
    letters = [Letter.about(each, "failed") for each in received(url, count, task)]
    for letter in letters:
        dead_letters.send(letter)
    return letters


def in_work(url: str) -> list[Any]:
    """What lies in the queue that the messages came from; taken from it."""
    with Connection(url) as connection:
        channel, found = connection.default_channel, []
        while (message := channel.basic_get("work", no_ack=True)) is not None:
            found.append(channel.message_to_python(message))
        return found


@pytest.fixture
def clean_work(broker_url: str) -> Iterator[None]:
    yield
    in_work(broker_url)


def test_listing_shows_all_oldest_first_and_changes_nothing(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letters = filled(dead_letters, broker_url, 250)
    assert dead_letters.list() == letters
    assert dead_letters.list() == letters
    assert waiting(broker_url) == letters


def test_listing_is_limited_to_the_oldest_and_to_a_task(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    reports = filled(dead_letters, broker_url, 5)
    others = filled(dead_letters, broker_url, 5, task="proj.other")
    assert dead_letters.list(limit=3) == reports[:3]
    assert dead_letters.list(task="proj.other", limit=2) == others[:2]
    assert dead_letters.list(task="proj.gone") == []
    assert waiting(broker_url) == reports + others


def test_queue_that_is_not_there_is_empty(dead_letters: DeadLetters, broker_url: str) -> None:
    forget(broker_url)
    assert dead_letters.list() == []
    assert dead_letters.show("no-such-letter") is None


def test_letter_is_found_by_its_id(dead_letters: DeadLetters, broker_url: str) -> None:
    letters = filled(dead_letters, broker_url, 3)
    assert dead_letters.show(letters[1].id) == letters[1]


def test_letters_that_come_while_somebody_looks_are_behind_the_others(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    first, second = filled(dead_letters, broker_url, 150), []
    with browsing(app_on(broker_url), QUEUE) as browser:
        seen = []
        for found in browser.letters():
            seen.append(found.letter)
            if len(seen) == 20:
                second = filled(dead_letters, broker_url, 5, task="proj.later")
    assert seen == first
    assert waiting(broker_url) == first + second


def test_letters_removed_on_the_way_hide_no_other(dead_letters: DeadLetters, broker_url: str) -> None:
    letters = filled(dead_letters, broker_url, 230)
    with browsing(app_on(broker_url), QUEUE) as browser:
        for number, found in enumerate(browser.letters()):
            assert found.letter == letters[number]
            if number % 3:
                browser.remove(found)
    assert waiting(broker_url) == letters[::3]


def test_letter_that_comes_back_at_once_is_not_met_again(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letters = filled(dead_letters, broker_url, 30)
    with browsing(app_on(broker_url), QUEUE) as browser:
        for found in browser.letters():
            dead_letters.send(found.letter)
            browser.remove(found)
    assert waiting(broker_url) == letters


KILLED_WHILE_LISTING = """
import os, signal, sys
from tests.integration.letter_brokers import QUEUE, app_on
from celery_singleton_lock.recovery.browsing import browsing

with browsing(app_on(sys.argv[1]), QUEUE) as browser:
    for number, found in enumerate(browser.letters()):
        if number == 60:
            os.kill(os.getpid(), signal.SIGKILL)
"""
KILLED_BEFORE_REMOVAL = """
import os, signal, sys
from tests.integration.letter_brokers import letters_on
from celery_singleton_lock.recovery import browsing

def killed(self, found):
    os.kill(os.getpid(), signal.SIGKILL)

browsing.RedisBrowser.remove = browsing.AmqpBrowser.remove = killed
letters_on(sys.argv[1]).replay(everything=True)
"""


def run_until_killed(program: str, url: str) -> None:
    ran = subprocess.run([sys.executable, "-c", program, url], timeout=60, check=False)
    assert ran.returncode == -9


def test_process_killed_while_listing_loses_and_moves_nothing(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letters = filled(dead_letters, broker_url, 120)
    run_until_killed(KILLED_WHILE_LISTING, broker_url)
    assert dead_letters.list() == letters


@pytest.mark.usefixtures("clean_work")
def test_replay_sends_the_message_where_it_came_from_for_a_fresh_start(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letters = filled(dead_letters, broker_url, 3)
    outcomes = dead_letters.replay(everything=True)
    assert [(each.letter, each.why_not) for each in outcomes] == [(each, "") for each in letters]
    messages = in_work(broker_url)
    assert [each.headers["id"] for each in messages] == [each.run_id for each in letters]
    for letter, message in zip(letters, messages, strict=True):
        assert message.headers["singleton_generation"] == 1
        assert message.headers["retries"] == 0
        assert "singleton_letter" not in message.headers
        again = Letter.about(message, "failed")
        assert again.original.body == letter.original.body
        assert again.original.properties == letter.original.properties
        assert again.id != letter.id
    assert dead_letters.list() == []
    assert dead_letters.replay(everything=True) == []


@pytest.mark.usefixtures("clean_work")
def test_replay_of_some_leaves_the_others_in_their_order(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letters = filled(dead_letters, broker_url, 6)
    dead_letters.replay(ids=[letters[1].id, letters[4].id])
    assert [each.headers["id"] for each in in_work(broker_url)] == ["run-1", "run-4"]
    assert waiting(broker_url) == [letters[number] for number in (0, 2, 3, 5)]


@pytest.mark.usefixtures("clean_work")
def test_replay_killed_before_the_letter_is_removed_gives_a_repeat_that_is_seen(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letters = filled(dead_letters, broker_url, 3)
    run_until_killed(KILLED_BEFORE_REMOVAL, broker_url)
    assert dead_letters.list() == letters, "none is removed that was not confirmed"
    dead_letters.replay(everything=True)
    sent = [(each.headers["id"], each.headers["singleton_generation"]) for each in in_work(broker_url)]
    assert sent == [("run-0", 1), ("run-0", 1), ("run-1", 1), ("run-2", 1)]


def repeated(dead_letters: DeadLetters, letter: Letter) -> Letter:
    """As a second worker writes it, after the first died between the letter and its record."""
    again = replace(letter, worker="celery@second", dead_at=letter.dead_at + timedelta(seconds=30))
    dead_letters.send(again)
    return again


def test_letter_that_was_repeated_is_one_letter(dead_letters: DeadLetters, broker_url: str) -> None:
    letters = filled(dead_letters, broker_url, 2)
    again = repeated(dead_letters, letters[0])
    assert dead_letters.list() == letters
    assert dead_letters.list(limit=2) == letters
    assert dead_letters.show(letters[0].id) == letters[0]
    assert len(dead_letters.purge(everything=True, dry_run=True)) == 2
    assert waiting(broker_url) == [*letters, again]


@pytest.mark.usefixtures("clean_work")
def test_letter_that_was_repeated_is_replayed_once(dead_letters: DeadLetters, broker_url: str) -> None:
    first, other = filled(dead_letters, broker_url, 2)
    repeated(dead_letters, first)
    outcomes = dead_letters.replay(everything=True, limit=1)
    assert [each.letter for each in outcomes] == [first]
    assert [each.headers["id"] for each in in_work(broker_url)] == ["run-0"]
    assert waiting(broker_url) == [other], "the repeat went with the first, whatever the limit"


def test_letter_that_was_repeated_is_purged_with_its_repeats(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    first, other = filled(dead_letters, broker_url, 2)
    repeated(dead_letters, first)
    assert len(dead_letters.purge(ids=[first.id])) == 1
    assert waiting(broker_url) == [other]


def test_repeat_of_a_letter_that_could_not_be_replayed_stays(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letter = plain_letter(exchange="gone", routing_key="nowhere")
    dead_letters.send(letter)
    again = repeated(dead_letters, letter)
    [outcome] = dead_letters.replay(everything=True)
    assert "no queue takes exchange" in outcome.why_not
    assert [each.worker for each in waiting(broker_url)] == [letter.worker, again.worker]


def test_two_messages_of_one_id_are_two_letters(dead_letters: DeadLetters, broker_url: str) -> None:
    letter = filled(dead_letters, broker_url, 1)[0]
    other = replace(letter, original=replace(letter.original, body=b"[[2], {}, {}]"))
    dead_letters.send(other)
    assert dead_letters.list() == [letter, other]


@pytest.mark.usefixtures("clean_work")
def test_dry_run_and_limit(dead_letters: DeadLetters, broker_url: str) -> None:
    letters = filled(dead_letters, broker_url, 4)
    assert [each.letter for each in dead_letters.replay(everything=True, dry_run=True)] == letters
    assert [each.letter for each in dead_letters.purge(everything=True, dry_run=True)] == letters
    assert in_work(broker_url) == []
    dead_letters.replay(everything=True, limit=1)
    dead_letters.purge(everything=True, limit=1)
    assert waiting(broker_url) == letters[2:]


def test_message_that_no_queue_would_take_stays(dead_letters: DeadLetters, broker_url: str) -> None:
    dead_letters.send(plain_letter(exchange="gone", routing_key="nowhere"))
    dead_letters.send(plain_letter(exchange="", routing_key=""))
    letters = dead_letters.list()
    outcomes = dead_letters.replay(everything=True)
    assert all("no queue takes exchange" in each.why_not for each in outcomes)
    assert len(outcomes) == 2
    assert waiting(broker_url) == letters


def test_purge_removes_what_was_chosen_and_says_who_did_it(
    dead_letters: DeadLetters, broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    letters = filled(dead_letters, broker_url, 5)
    others = filled(dead_letters, broker_url, 2, task="proj.other")
    with caplog.at_level(logging.WARNING, "celery_singleton_lock.audit"):
        dead_letters.purge(task="proj.other", who="ann@host")
        dead_letters.purge(ids=[letters[0].id])
    assert waiting(broker_url) == letters[1:]
    assert len(others) == 2
    assert "dead_letters_purged who='ann@host' queue='dead-letters' what='task proj.other' count=2" in (
        caplog.text
    )
    assert f"what='ids {letters[0].id}' count=1 refused=0" in caplog.text


def test_broker_that_is_away_is_named_without_its_password(broker_url: str, proxy: TcpProxy) -> None:
    letters = letters_on(through(proxy, broker_url).replace("guest:guest", "guest:s3cr3t-word"))
    proxy.refuse()
    for work in (letters.list, lambda: letters.purge(everything=True)):
        with pytest.raises(BrokerUnavailable) as raised:
            work()
        assert "s3cr3t-word" not in str(raised.value)


def test_broker_that_falls_silent_while_listing_is_not_waited_for_for_ever(
    dead_letters: DeadLetters, broker_url: str, proxy: TcpProxy
) -> None:
    letters = filled(dead_letters, broker_url, 150)

    def list_with_a_fault() -> None:
        with browsing(app_on(through(proxy, broker_url)), QUEUE) as browser:
            for number, _ in enumerate(browser.letters()):
                if number == 50:
                    proxy.blackhole()

    with pytest.raises(BrokerUnavailable):
        list_with_a_fault()
    proxy.heal()
    proxy.cut()
    assert dead_letters.list() == letters


@pytest.mark.usefixtures("clean_work")
def test_broker_that_goes_away_while_replaying_loses_nothing(
    dead_letters: DeadLetters, broker_url: str, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(dead_letters, broker_url, 10)
    through_proxy = letters_on(through(proxy, broker_url))
    waits: list[int] = []

    def cut_at_the_fifth(_: Pace) -> None:
        waits.append(1)
        if len(waits) == 5:
            proxy.refuse()
            proxy.cut()

    monkeypatch.setattr(Pace, "wait", cut_at_the_fifth)
    with pytest.raises(BrokerUnavailable):
        through_proxy.replay(everything=True)
    monkeypatch.undo()
    dead_letters.replay(everything=True)
    assert {each.headers["id"] for each in in_work(broker_url)} == {f"run-{n}" for n in range(10)}


@pytest.mark.parametrize(
    "chosen", [{}, {"everything": True, "task": "a"}, {"everything": True, "ids": []}]
)
def test_nothing_is_done_to_letters_that_were_not_named(chosen: Any) -> None:
    letters = letters_on("redis://127.0.0.1:1/0")
    with pytest.raises(ConfigurationError, match="say which letters"):
        letters.purge(**chosen)
    with pytest.raises(ConfigurationError, match="say which letters"):
        letters.replay(**chosen)


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ConfigurationError, match="limit"):
        Choice(limit=limit)


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_rate_that_is_no_rate_is_refused(rate: float) -> None:
    with pytest.raises(ConfigurationError, match="rate"):
        Pace(rate)


def test_replay_keeps_its_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    monkeypatch.setattr("time.sleep", lambda seconds: clock.append(clock.pop() + seconds))
    pace = Pace(4)
    times = []
    for _ in range(5):
        pace.wait()
        times.append(clock[0])
    assert times == [100.0, 100.25, 100.5, 100.75, 101.0]


def test_broker_that_cannot_be_browsed_safely_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot be browsed safely"):
        letters_on("memory://").list()


def test_prefix_and_priorities_of_redis_are_respected(valkey: RedisServer) -> None:
    options = {"global_keyprefix": "mine:"}
    letters = letters_on(valkey.url, broker_transport_options=options)
    client: Any = valkey.connect()
    letters.send(plain_letter())
    assert client.llen("mine:dead-letters") == 1
    # As somebody's own tool might do it.
    client.rename("mine:dead-letters", "mine:dead-letters\x06\x166")
    assert len(letters.list()) == 1
    letters.purge(everything=True)
    assert client.keys("*dead-letters*") == []
    letters.close()


def test_what_somebody_pushed_there_is_shown_and_can_be_purged(valkey: RedisServer) -> None:
    letters = letters_on(valkey.url)
    client: Any = valkey.connect()
    client.lpush(QUEUE, "no envelope", '{"a": 1}', "[]", "7")
    assert [each.reason for each in letters.list()] == ["foreign"] * 4
    assert letters.list()[0].original.body == b"no envelope"
    assert len(letters.replay(everything=True)) == 4, "they have nowhere to go"
    assert client.llen(QUEUE) == 4
    letters.purge(everything=True)
    assert client.llen(QUEUE) == 0
    letters.close()
