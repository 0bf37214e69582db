"""Servers and replicas of beat for one test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from celery_singleton_lock.testing.servers import RedisServer

from .beats import CONFIG, Beats, StartBeats


@pytest.fixture
def broker() -> Iterator[RedisServer]:
    with RedisServer(persistent=True) as server:
        yield server


@pytest.fixture
def locks() -> Iterator[RedisServer]:
    with RedisServer(persistent=True) as server:
        yield server


@pytest.fixture
def nodes() -> Iterator[list[RedisServer]]:
    """Five that know nothing of each other."""
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(5)]


@pytest.fixture
def start_beats(tmp_path: Path) -> Iterator[StartBeats]:
    started: list[Beats] = []

    def start(broker_url: str, lock_url: str, replicas: int = 3, config: str = CONFIG) -> Beats:
        beats = Beats(tmp_path, config, BROKER=broker_url, LOCK=lock_url)
        started.append(beats)
        for _ in range(replicas):
            beats.start()
        return beats

    yield start
    for beats in started:
        beats.end()
