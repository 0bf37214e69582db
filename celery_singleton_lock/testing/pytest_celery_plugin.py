"""pytest-celery without Docker: its brokers, backends and workers as processes of this machine.

Ask for it in your ``conftest.py``, and use ``celery_setup`` as ever::

    pytest_plugins = ["celery_singleton_lock.testing.pytest_celery_plugin"]

Where Docker is to be used, do not ask for it: the tests are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from .nodes import RabbitMQNode, RedisNode, WorkerNode
from .servers import ServerMissing


@pytest.fixture
def default_redis_broker() -> Iterator[RedisNode]:
    node = RedisNode()
    yield node
    node.teardown()


@pytest.fixture
def default_redis_backend() -> Iterator[RedisNode]:
    node = RedisNode()
    yield node
    node.teardown()


@pytest.fixture
def default_rabbitmq_broker() -> Iterator[RabbitMQNode]:
    try:
        node = RabbitMQNode()
    except ServerMissing as missing:
        pytest.skip(str(missing))
    yield node
    node.teardown()


@pytest.fixture
def default_worker_container(
    tmp_path: Path,
    default_worker_command: Sequence[str],
    default_worker_env: Mapping[str, str],
    default_worker_initial_content: Mapping[str, bytes],
) -> Iterator[WorkerNode]:
    place = tmp_path / "worker"
    place.mkdir()
    node = WorkerNode(place, default_worker_command, default_worker_env, default_worker_initial_content)
    yield node
    node.teardown()
