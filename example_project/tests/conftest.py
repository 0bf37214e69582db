"""A shop of its own for each test, in a file; its messages and leases stay in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from example_project import database
from example_project.app import app
from example_project.models import Base


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(database, "DATABASE_URL", f"sqlite:///{tmp_path}/shop.sqlite")
    # What is called is done here and now, without a lock; what is sent by the outbox, at the commit.
    app.conf.task_always_eager = True
    database.engine.cache_clear()
    Base.metadata.create_all(database.engine())
    yield
    app.conf.task_always_eager = False
    database.engine().dispose()
    database.engine.cache_clear()


@pytest.fixture
def session() -> Iterator[Session]:
    with database.new_session() as session:
        yield session
