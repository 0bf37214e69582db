"""The same facts on every broker, kind of lock and pool, through the nodes of pytest-celery."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pytest_celery import CeleryTestSetup

from .conftest import PAIRWISE, WHOLE

pytestmark = [
    pytest.mark.shared_tasks,
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PATIENCE_S = 30


def test_every_pair_of_values_is_in_the_matrix() -> None:
    for one, other in ((0, 1), (0, 2), (1, 2)):
        pairs = {(place[one], place[other]) for place in WHOLE}
        assert {(place[one], place[other]) for place in PAIRWISE} == pairs


def test_a_run_is_executed_once_and_taken_over_from_a_killed_worker(
    celery_setup: CeleryTestSetup,
) -> None:
    assert celery_setup.ready(ping=True)
    app, redis = celery_setup.app, celery_setup.backend.container.client

    def send(task: str, *args: Any, **options: Any) -> Any:
        return app.send_task(task, args, queue=celery_setup.worker.worker_queue, **options)

    # A result, and a fence.
    answer = send("matrix.add", 1, 2).get(timeout=PATIENCE_S)
    assert answer["sum"] == 3
    assert answer["fence"] > 0

    # Two messages of one run: it is executed once.
    run = str(uuid.uuid4())
    for _ in range(2):
        send("matrix.count", "n", task_id=run).get(timeout=PATIENCE_S)
    send("matrix.add", 0, 0).get(timeout=PATIENCE_S)
    assert redis.get("n") == "1"

    # Its worker is killed: it is neither lost nor skipped, and its fence has grown.
    result = send("matrix.wait", "w")
    until(lambda: redis.llen("w:fences") == 1)
    celery_setup.worker.kill()
    celery_setup.worker.restart()
    until(lambda: redis.llen("w:fences") >= 2)
    redis.set("w:go", 1)
    first, *_, last = map(int, redis.lrange("w:fences", 0, -1))
    assert result.get(timeout=PATIENCE_S) == last > first


def until(fact: Callable[[], bool], within: float = PATIENCE_S) -> None:
    give_up_at = time.monotonic() + within
    while not fact():
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.05)
