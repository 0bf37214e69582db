"""From a Celery request to what is asked of the store, and to what the body of the task sees."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from celery.exceptions import Retry

from celery_singleton_lock.core import headers
from celery_singleton_lock.core.clock import boottime

from .current_run import Run
from .notes import notes_of
from .options import TaskOptions
from .parts import Parts
from .run import Ask, Leases, position_of, run_key
from .unique import UniqueKey

if TYPE_CHECKING:
    from .effects import Effects

OURS: Final = "singleton"
"""Where the parent process puts what it tells the child: among the properties of the request, which
Celery passes on but, unlike a header, does not send again with a retry."""

_NOT_AT_ALL: Final = timedelta(0)


def seen_run(
    task: str,
    request: Any,
    leases: Leases | None = None,
    *,
    effects: Effects | None = None,
    is_loose: bool = True,
) -> Run:
    """`is_loose`: without a lock because none was asked for. It has a fence all the same, so that code
    which writes with it can be tested; a run that goes on although the store is away has none."""
    custom = request.headers or {}
    return Run(
        id=request.id or "",
        task=task,
        attempt=(request.retries or 0) + 1,
        entry=_text(custom.get(headers.ENTRY)),
        slot=headers.read_slot(custom.get(headers.SLOT)),
        leases=leases,
        loose_fence=time.time_ns() // 1000 if is_loose else 0,
        effects=effects,
    )


def ask_of(task: Any, request: Any, options: TaskOptions, unique: UniqueKey, parts: Parts) -> Ask:
    """`request`: a Context, in the child or of the parent's request."""
    told: Mapping[str, Any] = (request.properties or {}).get(OURS) or {}
    custom = request.headers or {}
    run, retries = request.id, request.retries or 0
    job = None
    if options.overlap != "allow" or options.on_duplicate is not None:
        job = unique.of(request.args or (), request.kwargs or {})
    kept_since = told.get("kept_since")
    is_redelivered = bool((request.delivery_info or {}).get("redelivered"))
    note, about = notes_of(task.name, request, custom, told.get("message"), options)
    return Ask(
        run=run,
        owner=told.get("execution") or f"{run}:{time.time_ns():x}",
        position=position_of(retries, request.replaced_task_nesting or 0),
        ttl=options.ttl(parts.settings),
        run_key=run_key(run, _count(custom.get(headers.GENERATION))),
        task_key=None if options.overlap == "allow" else f"task:{job}",
        call_key=None if options.on_duplicate is None else f"call:{job}",
        note=note,
        about=about,
        overlap=options.overlap,
        in_turn=bool(custom.get(headers.IN_TURN)),
        was_started=retries > 0 or is_redelivered,
        may_take_over=is_redelivered or bool(kept_since) or bool(custom.get(headers.AGAIN)),
        waited=timedelta(seconds=boottime() - kept_since) if kept_since else _NOT_AT_ALL,
        lock_wait=options.lock_wait,
        max_deliveries=options.most_deliveries(parts.settings),
    )


def task_key_of(task: Any, args: Any, kwargs: Mapping[str, Any], options: TaskOptions) -> str | None:
    return None if options.overlap == "allow" else f"task:{task.singleton_unique.of(args, kwargs)}"


def writes_letters(options: TaskOptions, request: Any) -> bool:
    """Whether a run that fails for good becomes a dead letter, which its parent process writes: not
    where there is none that knows of us."""
    return options.dead_letter and OURS in (request.properties or {})


def is_in_canvas(request: Any) -> bool:
    """Whether somebody's next step depends on this task."""
    return bool(
        request.chain or request.callbacks or request.errbacks or request.group or request.chord
    )


def delay_of(retrying: Retry) -> timedelta:
    when = retrying.when
    if isinstance(when, datetime):
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(timedelta(0), aware - datetime.now(UTC))
    return timedelta(seconds=max(0.0, float(when or 0)))


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int:
    return max(0, value) if isinstance(value, int) else 0
