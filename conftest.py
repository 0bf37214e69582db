"""For the tests of the package and of the example project alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import _state
from hypothesis import settings as hypothesis_settings

from tests.in_parallel import ByModule, in_turn

# A busy machine is no fault of ours: no deadline.
hypothesis_settings.register_profile("default", deadline=None)
hypothesis_settings.register_profile("thorough", deadline=None, max_examples=3000)
hypothesis_settings.load_profile("default")

ON_REAL_PROCESSES = ("tests/end_to_end", "tests/integration")
_TIME_LIMIT = pytest.StashKey[Any]()


@pytest.fixture(autouse=True)
def _tasks_stay_with_their_app(request: pytest.FixtureRequest) -> Iterator[None]:
    """Celery gives a task to every app that is made later in the process, unless it is told not to:
    apps of one test would have the tasks of another. Those of Celery itself are for all apps, and those
    of `shared_task` for the tests that are about them."""
    finalizers = _state._on_app_finalizers
    wants_shared = request.node.get_closest_marker("shared_tasks") is not None
    # As Celery names the functions in which `shared_task` and `app.task` hand a task on.
    shared = {each for each in finalizers if _is_made_in(each, "shared_task.")}
    finalizers -= {each for each in finalizers if _is_made_in(each, "Celery.task.")}
    if not wants_shared:
        finalizers -= shared
    yield
    finalizers |= shared


def _is_made_in(finalizer: object, outer: str) -> bool:
    return getattr(finalizer, "__qualname__", "").startswith(outer)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "shared_tasks: the apps of the test have the tasks of shared_task"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _try_again_what_waits(items)
    if hasattr(config, "workerinput"):  # of a parallel run
        items[:] = [items[place] for place in in_turn([item.nodeid for item in items])]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByModule | None:
    return ByModule(config, log) if config.getoption("dist") == "loadgroup" else None


def _try_again_what_waits(items: list[pytest.Item]) -> None:
    """What waits for processes on a busy machine is tried again, and named at the end as rerun. Not so
    what judges safety: the fault suite, the model and the kit of the stores."""
    for item in items:
        if item.nodeid.startswith(ON_REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=2))


# pytest-timeout sets its timer once a test, and takes it back at the first failure: neither the
# teardown after it nor the next try would have a limit, and one that hangs would hang the run for ever.


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    item.stash[_TIME_LIMIT] = settings


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _start_the_time_again(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    _start_the_time_again(item)


def _start_the_time_again(item: pytest.Item) -> None:
    if _TIME_LIMIT in item.stash:
        item.ihook.pytest_timeout_cancel_timer(item=item)
        item.ihook.pytest_timeout_set_timer(item=item, settings=item.stash[_TIME_LIMIT])
