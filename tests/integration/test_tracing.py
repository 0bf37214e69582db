"""Claim, publish and run of one slot are one trace, as the SDK of OpenTelemetry sees it."""

from __future__ import annotations

import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from celery_singleton_lock import SingletonScheduler, SingletonTask
from celery_singleton_lock.testing.servers import RedisServer
from tests.end_to_end.beats import until
from tests.spans import collect_spans

from .workers import LEAVES_CONNECTIONS, define, new_app, working

pytestmark = LEAVES_CONNECTIONS


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    return collect_spans()


@pytest.fixture
def app(exporter: InMemorySpanExporter) -> Iterator[Celery]:
    exporter.clear()
    with RedisServer() as server:
        app = new_app(server)
        app.conf.singleton_tracing = True
        yield app
        gc.collect()


def spans(exporter: InMemorySpanExporter, kind: str) -> list[Any]:
    return [span for span in exporter.get_finished_spans() if span.name.startswith(f"{kind} ")]


def test_claim_publish_and_run_are_one_trace(app: Celery, exporter: InMemorySpanExporter) -> None:
    @define(app, base=SingletonTask, name="t")
    def body() -> None:
        with trace.get_tracer("mine").start_as_current_span("mine in it"):
            pass

    def whole() -> list[tuple[Any, Any]]:
        """What the body did, in its run: one that was skipped has a span, too, and no body."""
        bodies, runs = spans(exporter, "mine"), spans(exporter, "run")
        return [(mine, run) for mine in bodies for run in runs if _is_parent(run, mine)]

    app.conf.beat_schedule = {"nightly": {"task": "t", "schedule": 1.0}}
    scheduler = SingletonScheduler(app)
    with working(app):
        give_up_at = time.monotonic() + 60
        while not whole():
            assert time.monotonic() < give_up_at, "did not happen in time"
            time.sleep(min(scheduler.tick(), 0.05))
    scheduler.close()
    mine, run = whole()[0]
    [publish] = [span for span in spans(exporter, "publish") if _is_parent(span, run)]
    [claim] = [span for span in spans(exporter, "claim") if _is_parent(span, publish)]
    assert claim.parent is None
    traces = {span.context.trace_id for span in (claim, publish, run, mine)}
    assert len(traces) == 1
    assert claim.start_time <= claim.end_time <= publish.start_time <= publish.end_time
    assert run.name == "run t"
    assert run.attributes["singleton.entry"] == "nightly"
    assert run.attributes["singleton.run"] == publish.attributes["singleton.run"]
    assert run.attributes["singleton.slot"] == publish.attributes["singleton.slot"]
    assert run.attributes["singleton.attempt"] == 1
    assert run.attributes["celery.state"] == "SUCCESS"
    # A slot that another tick published has a trace of its own.
    assert len({span.context.trace_id for span in spans(exporter, "publish")}) == len(
        spans(exporter, "publish")
    )


def test_retry_and_failure_are_spans_of_the_same_trace(
    app: Celery, exporter: InMemorySpanExporter
) -> None:
    @define(app, base=SingletonTask, name="t", bind=True, max_retries=1)
    def body(self: Any) -> None:
        raise self.retry(countdown=0, exc=ValueError("no"))

    def called() -> list[Any]:
        """Those of attempts; a message that waits for its turn has spans, too."""
        found = spans(exporter, "run")
        return [span for span in found if span.attributes["celery.state"] in ("RETRY", "FAILURE")]

    app.finalize()  # as `celery worker` does before it makes its steps
    with working(app):
        body.apply_async(headers={"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"})
        until(lambda: len(called()) == 2)
    first, second = called()
    assert {span.context.trace_id for span in (first, second)} == {int("ab" * 16, 16)}
    assert [span.attributes["celery.state"] for span in (first, second)] == ["RETRY", "FAILURE"]
    assert [span.attributes["singleton.attempt"] for span in (first, second)] == [1, 2]
    assert not second.status.is_ok


def test_without_the_setting_nothing_is_loaded_and_without_the_package_it_is_refused() -> None:
    program = """
import sys
from celery import Celery
from celery_singleton_lock import ConfigurationError, SingletonScheduler
app = Celery("a", broker="memory://")
SingletonScheduler(app, lazy=True)
assert "celery_singleton_lock.observability.tracing" not in sys.modules
sys.modules["opentelemetry"] = None
app = Celery("b", broker="memory://")
app.conf.singleton_tracing = True
try:
    SingletonScheduler(app, lazy=True)
except ConfigurationError as error:
    assert "celery-singleton-lock[tracing]" in str(error)
else:
    sys.exit("it was not refused")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def _is_parent(parent: Any, child: Any) -> bool:
    return child.parent is not None and child.parent.span_id == parent.context.span_id
