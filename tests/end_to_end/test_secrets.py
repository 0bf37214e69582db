"""No secret of any URL is told to anybody: not when all is well, not when everything is away, and not
when a task fails with the URLs in its own words."""

from __future__ import annotations

import io
import json
import logging
import threading
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_singleton_lock import SingletonScheduler, open_schedule
from celery_singleton_lock.core.errors import StoreUnavailable
from celery_singleton_lock.observability.logs import JsonFormatter
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.testing.servers import PostgresServer, RedisServer
from celery_singleton_lock.testing.servers.ports import free_port
from celery_singleton_lock.worker.parts import parts_of
from tests.integration.command_line import CommandLine
from tests.integration.test_alerts import Receiver
from tests.integration.workers import working
from tests.spans import collect_spans

from .beats import until
from .flowers import FlowerServer
from .test_flower_access import PATHS

SECRET = "Zq9x-secret"
"""Part of each: whatever has it in it has told one of them."""
LOGIN = {"Authorization": "Basic " + b64encode(f"alice:{SECRET}-flower".encode()).decode()}
SHOP = """
from celery import Celery
from celery_singleton_lock import SingletonTask
app = Celery("shop", set_as_current=False)
app.conf.update({config!r})

@app.task(base=SingletonTask, name="shop.fine", shared=False)
def fine():
    pass

@app.task(base=SingletonTask, name="shop.fail", shared=False)
def fail():
    raise ConnectionError("cannot reach " + " nor ".join({quoted!r}))
"""
COMMANDS = (
    ["doctor", "--all", "--timeout=0.5"], ["locks"], ["locks", "--state=free"], ["runs"], ["audit"],
    ["db", "upgrade"], ["db", "current"], ["db", "check"], ["schedule", "list"],
    ["schedule", "show", "fail"], ["schedule", "pause", "fine"], ["outbox", "status"],
    ["outbox", "list"], ["streams", "list"], ["dead-letters", "list"],
    ["dead-letters", "replay", "--all", "--dry-run"], ["quorum", "status"],
    ["health", "--timeout=1"], ["watch", "--once"],
)  # fmt: skip


class Shop:
    """Each of its URLs has a secret, and it uses all of them."""

    def __init__(
        self, place: Path, broker: RedisServer, locks: RedisServer, database: str, webhook: str
    ) -> None:
        self.config = {
            "broker_url": broker.url,
            "result_backend": broker.url,
            "broker_connection_retry_on_startup": True,
            "worker_send_task_events": True,
            "singleton_lock_url": locks.url,
            "singleton_lock_ttl": 2,
            "singleton_slot_ttl": 0.75,
            "singleton_database_url": database,
            "singleton_alert_webhook": webhook,
            "singleton_alert_smtp_url": f"smtp://alice:{SECRET}-mail@127.0.0.1:{free_port()}",
            "singleton_alert_email": "ops@example.com",
            "singleton_http": f"127.0.0.1:{free_port()}",
            "singleton_tracing": True,
            "beat_schedule": {
                "fine": {"task": "shop.fine", "schedule": 1.0},
                "fail": {"task": "shop.fail", "schedule": 1.0},
            },
        }
        quoted = [
            *(str(self.config[name]) for name in ("broker_url", "singleton_lock_url")),
            f"{database}?sslpassword={SECRET}-key",
            f"sentinel://h1:26379;h2:26379/mymaster?sentinel_password={SECRET}-sentinel",
            f"smtp://alice:{SECRET}-mail@mail.example.com",
        ]
        self.source = SHOP.format(config=self.config, quoted=quoted)
        names: dict[str, Any] = {"__name__": "shop"}
        exec(compile(self.source, "shop.py", "exec"), names)
        self.app: Celery = names["app"]
        self.app.finalize()
        self.line = CommandLine(self.app)

    def pages(self) -> str:
        return "\n".join(self._page(name) for name in ("livez", "readyz", "metrics"))

    def _page(self, name: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{self.config['singleton_http']}/{name}") as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return str(error.read().decode())

    def commands(self, *more: str) -> Iterator[tuple[str, str]]:
        for words in COMMANDS:
            said = self.line.run(*words, *more)
            yield f"singleton {' '.join((*words, *more))}", said.stdout + said.stderr


class SecretFlower(FlowerServer):
    def __init__(self, shop: Shop) -> None:
        super().__init__("", f"--basic-auth=alice:{SECRET}-flower")
        self._shop = shop

    def _create_data(self) -> None:
        (self.data / "shop.py").write_text(self._shop.source)

    def pages(self) -> Iterator[tuple[str, str]]:
        for path in PATHS:
            yield f"Flower's {path}", self.ask("GET", f"{path}?window=3600&name=fail", **LOGIN)[1]
        listed = json.loads(self.ask("GET", "/singleton/dead-letters/data", **LOGIN)[1])
        for row in listed.get("rows", [])[:3]:
            path = f"/singleton/dead-letters/letter?id={row['id']}"
            yield f"Flower's {path}", self.ask("GET", path, **LOGIN)[1]


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return collect_spans()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All lines of ours, as text; and all lines of the process, in the format of ours."""
    stream, root = io.StringIO(), logging.getLogger()
    ours, all_of_them = logging.StreamHandler(stream), logging.StreamHandler(stream)
    all_of_them.setFormatter(JsonFormatter())
    package = logging.getLogger("celery_singleton_lock")
    before = package.level
    package.setLevel(logging.DEBUG)
    package.addHandler(ours)
    root.addHandler(all_of_them)
    yield stream
    package.removeHandler(ours)
    root.removeHandler(all_of_them)
    package.setLevel(before)


class Events(threading.Thread):
    """Those of ours: Celery's own have the exception of a task as it is."""

    def __init__(self, app: Celery) -> None:
        super().__init__(daemon=True)
        self._app = app
        self.heard: list[dict[str, Any]] = []
        self.is_listening = threading.Event()

    def run(self) -> None:
        with self._app.connection_for_read() as connection:
            handlers = {"task-dead-lettered": self.heard.append, "task-skipped": self.heard.append}
            receiver = self._app.events.Receiver(connection, handlers=handlers)
            self.is_listening.set()
            # Until the broker is taken away.
            with suppress(*connection.connection_errors):
                receiver.capture(limit=None, timeout=None, wakeup=False)


def test_no_secret_of_any_url_is_told(
    tmp_path: Path,
    postgres: PostgresServer,
    receiver: Receiver,
    spans: InMemorySpanExporter,
    log: io.StringIO,
) -> None:
    broker = RedisServer("valkey", password=f"{SECRET}-broker").start()
    locks = RedisServer("valkey", password=f"{SECRET}-locks").start()
    database = postgres.url.replace("://postgres@", f"://postgres:{SECRET}-database@")
    assert SECRET in database
    webhook = receiver.url.replace("S3CRET", f"{SECRET}-webhook")
    shop = Shop(tmp_path, broker, locks, database, webhook)
    heard: dict[str, str] = {}
    try:
        shop.line.ok("db", "upgrade")
        events = Events(shop.app)
        events.start()
        assert events.is_listening.wait(10)
        scheduler = SingletonScheduler(shop.app)
        with SecretFlower(shop) as flower:
            with working(shop.app):
                letters = dead_letters_of(shop.app)
                until(lambda: scheduler.tick() is not None and letters.count() and events.heard)
                until(lambda: receiver.received and spans.get_finished_spans())
                until(lambda: "ConnectionError" in shop.line.run("runs", "--json").output)
                heard |= dict(shop.commands()) | dict(shop.commands("--json")) | dict(flower.pages())
                heard["metrics and health"] = shop.pages()
                letter = letters.list(limit=1)[0]
                heard["a letter, shown"] = shop.line.ok("dead-letters", "show", letter.id)
                heard["a letter, as JSON"] = shop.line.ok("dead-letters", "show", letter.id, "--json")
                heard["a letter itself"] = repr(letter.facts) + repr(letter.original.headers)
                locks.kill()
                with pytest.raises(StoreUnavailable) as away:
                    open_schedule(shop.app).entries()
                scheduler.tick()
                heard["an error"] = f"{away.value!r} {away.value}"
                heard["metrics and health, away"] = shop.pages()
                locks.start()
            scheduler.close()
            for server in (broker, locks):
                server.kill()
            heard |= {f"{name}, away": told for name, told in [*shop.commands(), *flower.pages()]}
            heard["Flower's log"] = flower.log
    finally:
        parts_of(shop.app).store.close()
        for server in (broker, locks):
            server.stop()
    heard["events"] = repr(events.heard)
    heard["alerts"] = repr(receiver.received)
    heard["traces"] = "\n".join(span.to_json() for span in spans.get_finished_spans())
    heard["the log"] = log.getvalue()
    heard["settings"] = repr(parts_of(shop.app).settings)
    assert all(heard.values()), "each has said something"
    for about in ("a letter itself", "traces", "alerts", "the log", "Flower's /singleton/runs/data"):
        assert "cannot reach" in heard[about], f"{about}: the failure is told"
    told = {
        name: text[max(0, at - 200) : at + 100]
        for name, text in heard.items()
        if (at := text.find(SECRET)) >= 0
    }
    assert told == {}
