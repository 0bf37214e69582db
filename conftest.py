"""For the tests of the package and of the example project alike."""

from __future__ import annotations

import pytest
from celery import _state

ON_REAL_PROCESSES = ("tests/end_to_end", "tests/integration")


@pytest.fixture(autouse=True)
def _tasks_stay_with_their_app() -> None:
    """Celery gives a task to every app that is made later in the process, unless it is told not to:
    apps of one test would have the tasks of another."""
    for finalizer in tuple(_state._on_app_finalizers):
        # As `app.task` names it; those of `shared_task`, and of Celery itself, are for all apps.
        if getattr(finalizer, "__qualname__", "").startswith("Celery.task."):
            _state._on_app_finalizers.discard(finalizer)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for processes on a busy machine is tried again, and named at the end as rerun. Not so
    what judges safety: the fault suite, the model and the kit of the stores."""
    for item in items:
        if item.nodeid.startswith(ON_REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=2))
