"""The fixtures that are offered to users."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.schedules import crontab

from celery_singleton_lock import (
    ConfigurationError,
    Granted,
    Held,
    LeaseLost,
    LeaseRequest,
    SingletonTask,
)
from celery_singleton_lock.testing.clock import FakeClock
from celery_singleton_lock.testing.slots import publish_slot, run_slot
from celery_singleton_lock.testing.steps import STEPS, KillAt

NINE = datetime(2026, 3, 2, 9, tzinfo=UTC)


@pytest.fixture
def app() -> Any:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(
        singleton_lock_url="memory://",
        beat_schedule={
            "report": {
                "task": "shop.report",
                "schedule": crontab(hour=9, minute=0),
                "args": ("north",),
            }
        },
    )

    @app.task(base=SingletonTask, bind=True, name="shop.report", shared=False)  # type: ignore[untyped-decorator]
    def report(self: Any, region: str) -> tuple[str, str, str]:
        run = self.current_run
        return region, run.entry, run.slot.isoformat()

    return app


def test_a_lease_runs_out_when_the_fake_clock_says_so() -> None:
    clock = FakeClock()
    store = clock.open_store()
    [first] = store.acquire([LeaseRequest("job", "a", timedelta(seconds=30))])
    assert isinstance(first, Granted)
    clock.advance(29)
    [second] = store.acquire([LeaseRequest("job", "b", timedelta(seconds=30))])
    assert isinstance(second, Held)
    clock.advance(timedelta(seconds=2))
    with pytest.raises(LeaseLost):
        first.lease.ensure_held()
    [third] = store.acquire([LeaseRequest("job", "b", timedelta(seconds=30))])
    assert isinstance(third, Granted)
    assert third.lease.fence > first.lease.fence


def test_the_fake_clock_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock().advance(-1)


def test_a_slot_is_run_as_the_run_of_that_slot(app: Any) -> None:
    result = run_slot(app, "report", NINE)
    assert result.get() == ("north", "report", NINE.isoformat())
    assert result.id == run_slot(app, "report", NINE).id


def test_without_a_slot_the_next_one_is_run(app: Any) -> None:
    _, _, slot = run_slot(app, "report").get()
    assert datetime.fromisoformat(slot) > datetime.now(UTC)


def test_a_slot_that_is_published_has_the_id_that_beat_gives_it(app: Any) -> None:
    assert publish_slot(app, "report", NINE).id == run_slot(app, "report", NINE).id


@pytest.mark.parametrize(
    ("entry", "slot", "said"),
    [
        ("nothing", NINE, "it has: report"),
        ("report", NINE + timedelta(minutes=1), "is not due at"),
        ("report", NINE.replace(tzinfo=None), "needs a time zone"),
    ],
)
def test_a_slot_that_cannot_be_is_refused(app: Any, entry: str, slot: datetime, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        run_slot(app, entry, slot)


def test_an_unknown_step_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="claimed, published"):
        KillAt(tmp_path).environment("publishd")


@pytest.mark.parametrize("name", STEPS)
def test_every_step_is_a_method_that_exists(name: str) -> None:
    from importlib import import_module

    step = STEPS[name]
    assert callable(getattr(getattr(import_module(step.module), step.owner), step.method))
