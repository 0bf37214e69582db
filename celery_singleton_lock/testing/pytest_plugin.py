"""Fixtures for tests of an application that uses this package. Ask for them in your ``conftest.py``::

pytest_plugins = ["celery_singleton_lock.testing.pytest_plugin"]
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from .clock import FakeClock
from .slots import publish_slot as publish
from .slots import run_slot as run
from .steps import KillAt


@pytest.fixture
def fake_clock() -> FakeClock:
    """A clock that the test moves; ``fake_clock.open_store()`` is a lease store that goes by it."""
    return FakeClock()


@pytest.fixture
def kill_at(tmp_path: Path) -> KillAt:
    """Lets a beat or a worker that the test starts die at a named step."""
    return KillAt(tmp_path)


@pytest.fixture
def run_slot() -> Callable[[Any, str, datetime | None], Any]:
    """``run_slot(app, entry, slot=None)``: one slot, executed now, in this process."""
    return run


@pytest.fixture
def publish_slot() -> Callable[[Any, str, datetime | None], Any]:
    """``publish_slot(app, entry, slot=None)``: one slot, published now, for the workers of the test."""
    return publish
