"""Relays that are killed at every step: each row has its effect, and has it once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_singleton_lock.testing.servers import RedisServer
from tests.integration.ledgers import empty_ledger, url_of
from tests.integration.outboxes import Shop

from .beats import StartBeats
from .outbox_deaths import STEPS, Deaths
from .workers import until

ROWS = 300
PAIRS = [("sqlite", "valkey"), ("postgres", "rabbitmq"), ("mariadb", "valkey")]


@pytest.fixture(params=PAIRS, ids="-".join)
def deaths(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    valkey: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Deaths]:
    database, broker = request.param
    url = url_of(database, request)
    ledger = empty_ledger(url)
    ledger.schema.upgrade()
    ledger.close()
    for name in ("DATABASE", "BROKER", "NOTES", "PREFIX"):
        monkeypatch.setenv(name, "")  # so that it is put back
    deaths = Deaths(tmp_path, url, request.getfixturevalue(broker).url, valkey)
    yield deaths
    deaths.close()


def test_each_row_has_one_effect_though_relays_are_killed_at_every_step(deaths: Deaths) -> None:
    deaths.send(ROWS)
    with deaths.worker():
        deaths.relay(batch=20, deaths=2 * len(STEPS))
        deaths.wait_for(ROWS)
    deaths.judge(ROWS)


CONFIG = """
import os
from celery import Celery
app = Celery("proj", broker=os.environ["BROKER"])
app.conf.update(
    beat_scheduler="celery_singleton_lock:SingletonScheduler",
    singleton_lock_url=os.environ["LOCK"],
    singleton_outbox_url="sqlite:///outbox.db",
    singleton_lock_ttl=1, singleton_slot_ttl=0.5,
)
"""


def test_beat_replicas_publish_what_is_in_the_outbox(
    start_beats: StartBeats, tmp_path: Path, broker: RedisServer, locks: RedisServer
) -> None:
    url = f"sqlite:///{tmp_path}/outbox.db"
    ledger = empty_ledger(url)
    ledger.schema.upgrade()
    ledger.close()
    shop = Shop(url, broker.url, prefix="singleton")
    shop.send(*range(50))
    beats = start_beats(broker.url, locks.url, 2, CONFIG)
    until(lambda: len(shop.states()) == 50 and {state for _, state in shop.states()} == {"published"})
    assert sorted(shop.received()) == list(range(50))
    # The one that is left goes on.
    beats.processes[0].kill()
    shop.send(50)
    until(lambda: shop.states()[-1] == (50, "published"))
    shop.close()
