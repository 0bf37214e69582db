"""A shop of its own for each test, in a file; its messages and leases stay in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.orm import Session

from celery_singleton_lock.ledger import open_ledger
from example_project import database, tasks
from example_project.app import app
from example_project.models import Base

# Read once, with the first lease.
app.conf.singleton_lock_url = "memory://"


@pytest.fixture(autouse=True)
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    url = f"sqlite:///{tmp_path}/shop.sqlite"
    monkeypatch.setattr(database, "DATABASE_URL", url)
    # What is called is done here and now, without a lock; what is sent by the outbox, at the commit.
    app.conf.task_always_eager = True
    database.engine.cache_clear()
    Base.metadata.create_all(database.engine())
    open_ledger(url).schema.upgrade()
    yield
    app.conf.task_always_eager = False
    tasks.order_changes.cache_clear()
    database.engine().dispose()
    database.engine.cache_clear()


@pytest.fixture
def session() -> Iterator[Session]:
    with database.new_session() as session:
        yield session
