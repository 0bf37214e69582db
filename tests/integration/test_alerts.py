"""Alerts reach a real HTTP server and a real mail server, and nobody waits for them."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message
from celery import Celery

from celery_singleton_lock import ConfigurationError
from celery_singleton_lock.core import facts
from celery_singleton_lock.observability.alerts import courier as courier_module
from celery_singleton_lock.observability.alerts.alert import Alert, alert_of
from celery_singleton_lock.observability.alerts.courier import Courier, Deliver, Refused
from celery_singleton_lock.observability.alerts.mail import Mail
from celery_singleton_lock.observability.alerts.templates import TEMPLATES, Sender
from celery_singleton_lock.observability.alerts.webhook import Webhook
from celery_singleton_lock.observability.listening import listeners_of
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.testing.servers.ports import free_port

AT = datetime(2026, 3, 1, 4, 0, 2, tzinfo=UTC)
RUN = facts.RunName("run-1", "shop.report", "<report>", AT - timedelta(seconds=2))
MISSED = facts.SlotMissed(at=AT, run=RUN, reason="too old")
BEGAN = facts.TroubleBegan(at=AT, part="store", reason="refused")
ENDED = facts.TroubleEnded(at=AT, part="store")
SENDER = Sender("shop", "host-1")


class Receiver(ThreadingHTTPServer):
    """What it was sent; it answers with the next of `statuses`, then with 200."""

    def __init__(self) -> None:
        self.received: list[dict[str, Any]] = []
        self.statuses: list[int] = []
        self.delay_s = 0.0
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/services/S3CRET"


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.server.delay_s)
        self.server.received.append(json.loads(body))
        self.send_response(self.server.statuses.pop(0) if self.server.statuses else 200)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def until(fact: Callable[[], Any]) -> None:
    give_up_at = time.monotonic() + 10
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.01)


def alert(fact: facts.Fact = MISSED) -> Alert:
    found = alert_of(fact)
    assert found is not None
    return found


def posting(url: str, template: str = "plain", key: str | None = None) -> Deliver:
    return Webhook(url, TEMPLATES[template], SENDER, key)


# Templates


def test_plain_template_has_all_there_is(receiver: Receiver) -> None:
    posting(receiver.url)(alert())
    assert receiver.received == [
        {
            "kind": "slot_missed",
            "about": "slot_missed:run-1",
            "severity": "error",
            "summary": "A slot of '<report>' was missed: 2026-03-01T04:00:00+00:00, too old",
            "at": "2026-03-01T04:00:02+00:00",
            "is_over": False,
            "more": 0,
            "app": "shop",
            "host": "host-1",
            "details": {
                "run": "run-1",
                "task": "shop.report",
                "entry": "<report>",
                "slot": "2026-03-01T04:00:00+00:00",
                "reason": "too old",
            },
        }
    ]


def test_slack_gets_a_text_in_which_names_are_only_names(receiver: Receiver) -> None:
    posting(receiver.url, "slack")(alert())
    [sent] = receiver.received
    assert set(sent) == {"text"}
    assert sent["text"].startswith(":x: *shop*: A slot of '&lt;report&gt;' was missed")
    assert "<" not in sent["text"]
    assert sent["text"].endswith("\non host-1")


def test_pagerduty_gets_an_event_and_its_end(receiver: Receiver) -> None:
    deliver = posting(receiver.url, "pagerduty", "R0UTE")
    deliver(alert(BEGAN))
    deliver(alert(ENDED))
    began, ended = receiver.received
    assert began == {
        "routing_key": "R0UTE",
        "dedup_key": "shop:trouble:store",
        "event_action": "trigger",
        "payload": {
            "summary": "shop: Beat waits for the store: refused",
            "source": "host-1",
            "severity": "critical",
            "timestamp": "2026-03-01T04:00:02+00:00",
            "component": "celery-singleton-lock",
            "class": "trouble",
            "custom_details": {"part": "store", "reason": "refused"},
        },
    }
    assert ended == {
        "routing_key": "R0UTE",
        "dedup_key": "shop:trouble:store",
        "event_action": "resolve",
    }


@pytest.mark.parametrize(
    ("fact", "kind"),
    [
        (MISSED, "slot_missed"),
        (BEGAN, "trouble"),
        (ENDED, "trouble"),
        (facts.DeadLettered(at=AT, run=RUN, reason="failed", letter={"id": "l"}), "dead_lettered"),
        (
            facts.DeadLettered(at=AT, run=None, reason="undecodable", letter={"id": "l"}),
            "dead_lettered",
        ),
        (facts.LeaseMayBeLost(at=AT, run=RUN, worker="w", key="k", fence=1), "lease_lost"),
        (facts.RunOverdue(at=AT, run=RUN, worker="w", expected=timedelta(1)), "overdue"),
        (facts.RunSkipped(at=AT, run=RUN, worker="w", reason="overlap", by="x"), "skipped"),
    ],
)
def test_facts_that_people_can_be_told_of(fact: facts.Fact, kind: str) -> None:
    found = alert(fact)
    assert found.kind == kind
    for template in TEMPLATES.values():
        json.dumps(template(found, SENDER, "key"))


def test_what_goes_as_it_should_is_no_alert() -> None:
    assert alert_of(facts.SlotsPublished(at=AT, runs=(RUN,), replica="r")) is None


# Delivery


def sent_by(deliver: Deliver, **more: Any) -> Courier:
    return Courier([("test", deliver)], **{"pauses_s": (0.01, 0.01), "window_s": 60, **more})


def test_sender_does_not_wait_for_a_slow_receiver(receiver: Receiver) -> None:
    receiver.delay_s = 1.0
    courier = sent_by(posting(receiver.url))
    began = time.monotonic()
    courier.send(alert())
    assert time.monotonic() - began < 0.5
    assert courier.flush(10)
    assert len(receiver.received) == 1


def test_delivery_is_tried_again_until_it_works(receiver: Receiver) -> None:
    receiver.statuses = [503, 429, 200]
    courier = sent_by(posting(receiver.url))
    courier.send(alert())
    until(lambda: len(receiver.received) == 3)
    assert courier.flush(10)
    assert len(receiver.received) == 3


def test_what_is_refused_is_not_tried_again_and_told(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.statuses = [404]
    courier = sent_by(posting(receiver.url))
    courier.send(alert())
    until(lambda: "alert_not_sent" in caplog.text)
    assert len(receiver.received) == 1
    assert "reason=it answered 404" in caplog.text
    assert "S3CRET" not in caplog.text


def test_receiver_that_is_away_is_told_without_its_address(caplog: pytest.LogCaptureFixture) -> None:
    courier = sent_by(posting(f"http://127.0.0.1:{free_port()}/services/S3CRET"))
    with caplog.at_level(logging.DEBUG):
        courier.send(alert())
        until(lambda: "alert_not_sent by=test kind=slot_missed" in caplog.text)
    assert "S3CRET" not in caplog.text


def test_storm_of_one_kind_is_two_messages(receiver: Receiver) -> None:
    courier = sent_by(posting(receiver.url), window_s=0.5)
    courier.send(alert())
    until(lambda: len(receiver.received) == 1)
    for _ in range(500):
        courier.send(alert())
    courier.send(alert(BEGAN))
    until(lambda: len(receiver.received) == 3)
    assert sorted((each["kind"], each["more"]) for each in receiver.received) == [
        ("slot_missed", 0),
        ("slot_missed", 499),
        ("trouble", 0),
    ]
    [last] = [each for each in receiver.received if each["more"]]
    assert last["summary"].endswith("(and 499 more like it)")


def test_what_there_is_no_room_for_is_dropped_and_counted(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(courier_module, "MOST_WAITING", 10)
    go, delivered = threading.Event(), list[Alert]()

    def deliver(alert: Alert) -> None:
        delivered.append(alert)
        assert go.wait(10)

    courier = sent_by(deliver)
    courier.send(alert())
    until(lambda: delivered)
    for _ in range(15):
        courier.send(alert())
    go.set()
    assert courier.flush(10)
    assert "alerts_dropped count=5" in caplog.text
    assert delivered[-1].more == 9


def test_flush_sends_what_waits_for_its_window(receiver: Receiver) -> None:
    courier = sent_by(posting(receiver.url))
    for _ in range(3):
        courier.send(alert())
    assert courier.flush(10)
    assert sum(1 + each["more"] for each in receiver.received) == 3


def test_child_that_was_forked_sends_its_own(receiver: Receiver) -> None:
    courier = sent_by(posting(receiver.url))
    courier.send(alert())
    assert courier.flush(10)
    child = os.fork()
    if child == 0:
        courier.send(alert(BEGAN))
        os._exit(0 if courier.flush(10) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert [each["kind"] for each in receiver.received] == ["slot_missed", "trouble"]


# Mail


class Inbox(Message):
    def __init__(self) -> None:
        super().__init__(EmailMessage)
        self.received: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.received.append(message)


@pytest.fixture
def mail_server() -> Iterator[Controller]:
    controller = Controller(Inbox(), hostname="127.0.0.1", port=free_port())
    controller.start()
    yield controller
    controller.stop()


def test_mail_has_subject_and_details(mail_server: Controller) -> None:
    url = f"smtp://127.0.0.1:{mail_server.port}"
    Mail(url, ["ops@example.org", "me@example.org"], "celery@example.org", SENDER)(alert())
    [message] = mail_server.handler.received
    # Long headers are folded.
    assert message["Subject"].strip().startswith("[shop] A slot of '<report>' was missed: 2026-03-01")
    assert message["From"] == "celery@example.org"
    assert message["To"] == "ops@example.org, me@example.org"
    assert "entry: <report>" in message.get_payload()
    assert "host: host-1" in message.get_payload()


def test_line_break_in_a_reason_makes_no_header(mail_server: Controller) -> None:
    began = facts.TroubleBegan(at=AT, part="store", reason="gone\r\nBcc: all@example.org")
    Mail(f"smtp://127.0.0.1:{mail_server.port}", ["a@b.c"], "a@b.c", SENDER)(alert(began))
    [message] = mail_server.handler.received
    assert message["Bcc"] is None


def test_password_is_not_sent_where_anybody_could_read_it(mail_server: Controller) -> None:
    mail = Mail(f"smtp://me:S3CRET@127.0.0.1:{mail_server.port}", ["a@b.c"], "a@b.c", SENDER)
    with pytest.raises(Refused, match="STARTTLS") as caught:
        mail(alert())
    assert "S3CRET" not in str(caught.value)


# Settings


def test_listener_is_there_if_an_address_is(receiver: Receiver) -> None:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(singleton_alert_webhook=receiver.url, singleton_alert_on=["slot_missed"])
    listeners = listeners_of(app)
    listeners.tell(BEGAN)
    listeners.tell(MISSED)
    until(lambda: receiver.received)
    assert [each["kind"] for each in receiver.received] == ["slot_missed"]
    assert not listeners_of(Celery("none", broker="memory://", set_as_current=False))


def settings(**more: Any) -> Settings:
    return Settings.from_mapping(
        {"singleton_lock_url": "memory://"}
        | {f"singleton_alert_{name}": value for name, value in more.items()}
    )


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"webhook": "ftp://host/S3CRET"}, "singleton_alert_webhook"),
        ({"webhook": "https://:S3CRET@"}, "singleton_alert_webhook"),
        ({"webhook": 3}, "singleton_alert_webhook"),
        ({"webhook": "https://h/S3CRET", "format": "pagerduty"}, "singleton_alert_key"),
        ({"smtp_url": "http://S3CRET"}, "singleton_alert_smtp_url"),
        ({"smtp_url": "smtp://u:S3CRET@host"}, "singleton_alert_email"),
        ({"email": "ops@example.org"}, "singleton_alert_smtp_url"),
        ({"email": ["ops@example.org, me@example.org"]}, "singleton_alert_email"),
        ({"on": ["slot_mised"]}, "slot_missed"),
        ({"webhook": "env:NOT_SET_ANYWHERE"}, "NOT_SET_ANYWHERE"),
    ],
)
def test_what_cannot_work_is_refused_without_its_secret(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        settings(**given)
    assert "S3CRET" not in str(caught.value)


def test_secrets_are_not_shown_and_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOK", "https://host/services/S3CRET")
    read = settings(webhook="env:HOOK", format="pagerduty", key="K3Y")
    assert read.alert_webhook == "https://host/services/S3CRET"
    assert "S3CRET" not in repr(read)
    assert "K3Y" not in repr(read)
