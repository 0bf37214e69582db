"""Asks the store for the leases of a run while Celery still prepares to call its task.

To wait for that answer is a large part of what a task costs that does nothing. Only for a pool that
executes tasks in the thread that has received their messages: it is certain there which one is next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from celery_singleton_lock.core.errors import ConfigurationError, StoreUnavailable
from celery_singleton_lock.core.models import Answer
from celery_singleton_lock.leases import LeaseStore

from .asking import OURS, ask_of
from .execution import requests_of
from .parts import Parts
from .run import Ask

_EARLY: Final = "early"


@dataclass(frozen=True, slots=True)
class Early:
    """An `ask`, of which the answer is on its way; call `answers` once."""

    ask: Ask
    answers: Callable[[], list[Answer]]
    _store: LeaseStore

    def take_back(self) -> None:
        """Best effort: what cannot be taken back runs out by itself."""
        try:
            answers = self.answers()
        except StoreUnavailable:
            return
        self._store.undo(answers)


def ask_early(task: Any, request: Any, parts: Parts) -> None:
    """`request`: the Context of the parent's request. Nothing is done where that would be of no use:
    then it is asked for, and any trouble told, when the task begins."""
    if not parts.endings.is_open:
        return
    try:
        ask = ask_of(task, request, task.singleton_options, task.singleton_unique, parts)
        if ask.may_take_over:
            return  # it looks first
        memory = None if parts.remembrance is None else parts.remembrance.memory
        answers = parts.store.start_acquire(requests_of(ask, memory))
    except (ConfigurationError, TypeError, StoreUnavailable):
        return
    request.properties[OURS][_EARLY] = Early(ask, answers, parts.store)


def take_early(request: Any) -> Early | None:
    """For whoever is first to ask; None for all others."""
    told = (request.properties or {}).get(OURS) or {}
    early: Early | None = told.pop(_EARLY, None)
    return early
