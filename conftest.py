"""For the tests of the package and of the example project alike."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import _state
from celery.app import builtins as builtins  # registers Celery's own tasks

_OF_CELERY = frozenset(_state._on_app_finalizers)

ON_REAL_PROCESSES = ("tests/end_to_end", "tests/integration")


@pytest.fixture(autouse=True)
def _tasks_stay_with_their_app() -> Iterator[None]:
    """Celery gives a task to every app that is made later in the process, unless it is told not to:
    apps of one test would have the tasks of another."""
    yield
    _state._on_app_finalizers.intersection_update(_OF_CELERY)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for processes on a busy machine is tried again, and named at the end as rerun. Not so
    what judges safety: the fault suite, the model and the kit of the stores."""
    for item in items:
        if item.nodeid.startswith(ON_REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=2))
