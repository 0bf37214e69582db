"""Spans of OpenTelemetry: claim, publish and run of one slot are one trace. Loaded if asked for.

The context goes with the message, in the headers that the propagators of your process write (W3C's
``traceparent`` by default), so that whatever your task does is a part of the trace, too.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from datetime import datetime
from traceback import format_exception
from typing import Any, Final

from celery import states
from celery.signals import task_postrun, task_prerun
from opentelemetry import context, propagate, trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from celery_singleton_lock.core import facts, headers
from celery_singleton_lock.core.models import Answer, LeaseRequest
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.leases import LeaseStore

from .store_classes import put_before

NAME: Final = "celery_singleton_lock"
MOST_OPEN: Final = 10_000
_SPAN: Final = "singleton_span"

Slot = tuple[str, datetime]


class BeatTracing:
    """Of one beat. A listener of facts, which end what `headers` began."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer(NAME)
        self._open: OrderedDict[Slot, Span] = OrderedDict()
        self._claim_ns = (0, 0)

    def claimed(self, began_ns: int, ended_ns: int) -> None:
        """What is published next was claimed then."""
        self._claim_ns = (began_ns, ended_ns)

    def headers(self, run: str, entry: str, slot: datetime) -> Mapping[str, str]:
        """For the message of a slot; its spans begin. Asked again, for a message that is sent again:
        the same."""
        span = self._open.get((entry, slot))
        if span is None:
            span = self._open[entry, slot] = self._begin(run, entry, slot)
            if len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        return carrier

    def _begin(self, run: str, entry: str, slot: datetime) -> Span:
        about = {
            "singleton.run": run,
            "singleton.entry": entry,
            "singleton.slot": headers.slot_text(slot),
            "messaging.system": "celery",
        }
        began, ended = self._claim_ns
        claim = self._tracer.start_span(
            f"claim {entry}", context=context.Context(), attributes=about, start_time=began or None
        )
        claim.end(ended or None)
        within = trace.set_span_in_context(claim)
        return self._tracer.start_span(
            f"publish {entry}", context=within, kind=SpanKind.PRODUCER, attributes=about
        )

    def __call__(self, fact: facts.Fact) -> None:
        match fact:
            case facts.SlotsPublished(runs=runs):
                for run in runs:
                    self._end(run, None)
            case facts.SlotMissed(run=run, reason=reason):
                self._end(run, reason)

    def _end(self, run: facts.RunName, error: str | None) -> None:
        if run.entry is None or run.slot is None:
            return
        span = self._open.pop((run.entry, run.slot), None)
        if span is not None:
            if error is not None:
                span.set_status(Status(StatusCode.ERROR, error))
            span.end()


class TracingStore(LeaseStore):
    """Stands before the class of a store: tells when entries were claimed."""

    _tracing: BeatTracing

    def acquire(self, requests: Sequence[LeaseRequest]) -> list[Answer]:
        began = time.time_ns()
        answers = super().acquire(requests)
        if requests and requests[0].key.startswith("beat:"):
            self._tracing.claimed(began, time.time_ns())
        return answers


def traced(store: LeaseStore, tracing: BeatTracing) -> LeaseStore:
    put_before(store, TracingStore)
    store._tracing = tracing  # type: ignore[attr-defined]
    return store


# Workers


def trace_runs() -> None:
    """In this process, and in the children that it forks. Twice is once."""
    task_prerun.connect(_begin_run, weak=False, dispatch_uid=__name__)
    task_postrun.connect(_end_run, weak=False, dispatch_uid=__name__)


def _begin_run(task: Any, task_id: str, **_: Any) -> None:
    if not hasattr(task, "singleton_options"):
        return
    request = task.request
    sent = {name: value for name, value in (request.headers or {}).items() if isinstance(value, str)}
    within = propagate.extract(sent)
    about: dict[str, Any] = {
        "singleton.run": task_id,
        "singleton.entry": sent.get(headers.ENTRY),
        "singleton.slot": sent.get(headers.SLOT),
        "singleton.attempt": (request.retries or 0) + 1,
        "messaging.system": "celery",
    }
    known = {name: value for name, value in about.items() if value is not None}
    span = trace.get_tracer(NAME).start_span(
        f"run {task.name}", context=within, kind=SpanKind.CONSUMER, attributes=known
    )
    token = context.attach(trace.set_span_in_context(span, within))
    setattr(request, _SPAN, (span, token))


def _end_run(task: Any, state: str | None = None, retval: Any = None, **_: Any) -> None:
    begun: tuple[Span, Any] | None = getattr(task.request, _SPAN, None)
    if begun is None:
        return
    setattr(task.request, _SPAN, None)
    span, token = begun
    context.detach(token)
    span.set_attribute("celery.state", state or "")
    if state == states.FAILURE:
        if isinstance(retval, BaseException):
            _record(span, retval)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


def _record(span: Span, error: BaseException) -> None:
    """As the SDK does it, but for the passwords of URLs that the error quotes."""
    told = {
        "exception.message": redact(str(error)),
        "exception.stacktrace": redact("".join(format_exception(error))),
    }
    span.record_exception(error, attributes=told)
