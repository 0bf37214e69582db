"""Asks the store for the leases of a run while Celery still prepares to call its task.

To wait for that answer is a large part of what a task costs that does nothing. Only for a pool that
executes tasks in the thread that has received their messages: it is certain there which one is next.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.errors import ConfigurationError, StoreUnavailable
from celery_singleton_lock.core.models import Answer
from celery_singleton_lock.leases import LeaseStore

from .asking import OURS, ask_of
from .execution import requests_of
from .parts import Parts
from .run import Ask

if TYPE_CHECKING:
    from .memory import Memory

_EARLY: Final = "early"
_OF_A_TTL: Final = 6


class Early:
    """An `ask`, of which the answer is on its way. Use it once."""

    def __init__(self, ask: Ask, request: Any, store: LeaseStore, memory: Memory | None) -> None:
        """Raises `StoreUnavailable`."""
        self.ask: Final = ask
        self._job: Final = (request.args, request.kwargs)
        self._began_at: Final = boottime()
        self._store: Final = store
        self._answers: Final = store.start_acquire(requests_of(ask, memory))

    def is_about(self, request: Any) -> bool:
        """False: somebody has changed the arguments since, and perhaps the job."""
        return self._job == (request.args, request.kwargs)

    def answers(self) -> list[Answer] | None:
        """None: it has waited for too long, for whatever comes between a message and its task, and is
        taken back. Raises `StoreUnavailable`."""
        # A lease is renewed when a third of its ttl has passed.
        if boottime() - self._began_at > self.ask.ttl.total_seconds() / _OF_A_TTL:
            self.take_back()
            return None
        return self._answers()

    def take_back(self) -> None:
        """Best effort: what cannot be taken back runs out by itself."""
        with suppress(StoreUnavailable):
            self._store.undo(self._answers())


def ask_early(task: Any, request: Any, parts: Parts) -> None:
    """`request`: the parent's, as `ask_of` reads it. Nothing is done where that would be of no use:
    then it is asked for, and any trouble told, when the task begins."""
    if not parts.endings.is_open:
        return
    try:
        ask = ask_of(task, request, task.singleton_options, task.singleton_unique, parts)
        if ask.may_take_over:
            return  # it looks first
        memory = None if parts.remembrance is None else parts.remembrance.memory
        early = Early(ask, request, parts.store, memory)
    except (ConfigurationError, TypeError, StoreUnavailable):
        return
    request.properties[OURS][_EARLY] = early


def take_early(request: Any) -> Early | None:
    """For whoever is first to ask; None for all others."""
    early = _taken((request.properties or {}).get(OURS) or {})
    if early is not None and not early.is_about(request):
        early.take_back()
        return None
    return early


def take_back_early(told: dict[str, Any]) -> None:
    """Where nobody has asked. `told`: what a parent process tells of its request."""
    if (early := _taken(told)) is not None:
        early.take_back()


def _taken(told: dict[str, Any]) -> Early | None:
    early: Early | None = told.pop(_EARLY, None)
    return early
