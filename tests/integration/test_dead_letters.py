"""A letter that was sent is in the queue, and one that is not in the queue was not sent."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
import pytest
from kombu.connection import Connection

from celery_singleton_lock.core.errors import LetterNotSent
from celery_singleton_lock.core.signals import run_dead_lettered
from celery_singleton_lock.recovery.dead_letters import DeadLetters, announce, dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.testing.servers import RabbitMQServer, TcpProxy
from tests.integration.letter_brokers import (
    QUEUE,
    app_on,
    forget,
    letter_on,
    letters_on,
    own_broker,
    plain_letter,
    port_of,
    received,
    through,
    waiting,
)

SECRET = "n0t-for-logs"


def test_letter_that_was_sent_is_in_the_queue_as_it_was(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    letter = letter_on(broker_url)
    dead_letters.send(letter)
    assert waiting(broker_url) == [letter]


def test_message_of_any_content_can_be_put_into_a_letter(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    message = received(broker_url)[0]
    for kind, encoding in ((None, None), ("application/x-odd", "koi8-r"), ("text/plain", None)):
        message.content_type, message.content_encoding = kind, encoding
        message.body = bytes(range(256))
        letter = Letter.about(message, "undecodable")
        dead_letters.send(letter)
        assert waiting(broker_url) == [letter]


def test_letter_survives_a_crash_of_the_broker(broker_url: str) -> None:
    letter = letter_on(broker_url)
    with own_broker(like=broker_url) as server:
        letters = letters_on(server.url)
        letters.send(letter)
        letters.close()
        server.kill()
        server.start()
        assert waiting(server.url) == [letter]


def test_queue_that_was_deleted_does_not_swallow_the_letter(
    dead_letters: DeadLetters, broker_url: str
) -> None:
    first, second = letter_on(broker_url), letter_on(broker_url)
    dead_letters.send(first)
    forget(broker_url)
    dead_letters.send(second)
    assert waiting(broker_url) == [second]


def test_queue_that_exists_is_taken_as_it_is(dead_letters: DeadLetters, broker_url: str) -> None:
    with Connection(broker_url) as connection:
        arguments = {"x-max-length": 100} if broker_url.startswith("amqp") else {}
        connection.default_channel.queue_declare(
            queue=QUEUE, durable=True, auto_delete=False, arguments=arguments
        )
    letter = letter_on(broker_url)
    dead_letters.send(letter)
    assert waiting(broker_url) == [letter]


def test_letter_that_the_broker_refuses_is_not_called_sent(rabbitmq: RabbitMQServer) -> None:
    letters = letters_on(rabbitmq.url)
    forget(rabbitmq.url)
    with Connection(rabbitmq.url) as connection:
        full = {"x-max-length": 0, "x-overflow": "reject-publish"}
        connection.default_channel.queue_declare(
            queue=QUEUE, durable=True, auto_delete=False, arguments=full
        )
    with pytest.raises(LetterNotSent, match="MessageNacked"):
        letters.send(plain_letter())
    letters.close()
    forget(rabbitmq.url)


def test_connection_that_died_meanwhile_is_replaced(broker_url: str, proxy: TcpProxy) -> None:
    letters, first, second = (
        letters_on(through(proxy, broker_url)),
        letter_on(broker_url),
        letter_on(broker_url),
    )
    letters.send(first)
    proxy.cut()
    letters.send(second)
    letters.close()
    assert waiting(broker_url) == [first, second]


@pytest.mark.parametrize("fault", [TcpProxy.refuse, TcpProxy.blackhole], ids=["refuses", "silent"])
def test_broker_that_is_away_gives_letter_not_sent_and_later_takes_it(
    broker_url: str, proxy: TcpProxy, fault: Callable[[TcpProxy], None]
) -> None:
    letters, letter = letters_on(through(proxy, broker_url)), letter_on(broker_url)
    fault(proxy)
    with pytest.raises(LetterNotSent):
        letters.send(letter)
    proxy.heal()
    letters.send(letter)
    letters.close()
    assert waiting(broker_url) == [letter]


def test_broker_that_falls_silent_after_the_first_letter_gives_letter_not_sent(
    broker_url: str, proxy: TcpProxy
) -> None:
    letters, first, second = (
        letters_on(through(proxy, broker_url)),
        letter_on(broker_url),
        letter_on(broker_url),
    )
    letters.send(first)
    proxy.blackhole()
    with pytest.raises(LetterNotSent):
        letters.send(second)
    proxy.heal()
    letters.send(second)
    letters.close()
    assert waiting(broker_url)[-1] == second


def test_error_names_no_password() -> None:
    letters = letters_on(f"amqp://guest:{SECRET}@127.0.0.1:1//")
    with pytest.raises(LetterNotSent) as raised:
        letters.send(plain_letter())
    assert SECRET not in str(raised.value)


def test_threads_that_send_at_once_lose_no_letter(dead_letters: DeadLetters, broker_url: str) -> None:
    letters = [Letter.about(message, "failed") for message in received(broker_url, 80)]

    def send_each(part: list[Letter]) -> None:
        for letter in part:
            dead_letters.send(letter)

    threads = [threading.Thread(target=send_each, args=[letters[part::4]]) for part in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.id for each in waiting(broker_url)) == sorted(each.id for each in letters)


def ports_to(broker_url: str) -> set[int]:
    """Our ends of this process's connections to the broker."""
    port, connections = port_of(broker_url), psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in connections if each.raddr and each.raddr.port == port}


def test_forked_child_has_a_connection_of_its_own(dead_letters: DeadLetters, broker_url: str) -> None:
    letters = [Letter.about(message, "failed") for message in received(broker_url, 30)]
    dead_letters.send(letters[0])
    of_the_parent = ports_to(broker_url)
    assert of_the_parent
    child = os.fork()
    if child == 0:
        try:
            for letter in letters[1:10]:
                dead_letters.send(letter)
            os._exit(0 if ports_to(broker_url) - of_the_parent else 2)
        finally:
            os._exit(1)
    for letter in letters[10:]:
        dead_letters.send(letter)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    dead_letters.send(letters[0])
    assert ports_to(broker_url) == of_the_parent, "the child did not end it"
    assert {each.id for each in waiting(broker_url)} == {each.id for each in letters}


class Dispatcher:
    enabled = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def send(self, kind: str, **facts: Any) -> None:
        self.events.append((kind, facts))


def test_letter_is_announced_by_signal_event_and_log(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Letter] = []

    def receiver(letter: Letter) -> None:
        told.append(letter)

    run_dead_lettered.connect(receiver)
    dispatcher, letter = Dispatcher(), plain_letter()
    try:
        announce(letter, dispatcher)
    finally:
        run_dead_lettered.disconnect(receiver)
    assert told == [letter]
    assert [(kind, facts["uuid"]) for kind, facts in dispatcher.events] == [
        ("task-dead-lettered", "run-1")
    ]
    assert "run_dead_lettered task=proj.report run=run-1 reason=invalid" in caplog.text


def test_event_that_cannot_be_sent_breaks_nothing() -> None:
    class Broken(Dispatcher):
        def send(self, kind: str, **facts: Any) -> None:
            raise OSError("away")

    announce(plain_letter(), Broken())


def test_app_has_one_set_of_dead_letters_and_can_be_collected() -> None:
    app = app_on("redis://127.0.0.1:1/0")
    letters = weakref.ref(dead_letters_of(app))
    assert dead_letters_of(app) is letters()
    app.close()
    del app
    gc.collect()
    assert letters() is None


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # kombu's, of SQLAlchemy
@pytest.mark.parametrize("scheme", ["memory", "sqla+sqlite", "filesystem"])
def test_letter_can_be_sent_over_any_transport(scheme: str, tmp_path: Path) -> None:
    url = f"{scheme}://" + (f"/{tmp_path}/broker.db" if scheme.startswith("sqla") else "")
    folders = {"data_folder_in": str(tmp_path), "data_folder_out": str(tmp_path)}
    letters = letters_on(url, broker_transport_options=folders if scheme == "filesystem" else {})
    letters.send(plain_letter())
    letters.close()
