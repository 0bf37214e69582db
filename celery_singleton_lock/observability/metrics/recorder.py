"""From facts to numbers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Final

from celery_singleton_lock.core import facts

from . import catalogue as all_
from .counts import Counts
from .names import Names

_OUTCOMES: Final = {"failed, letter due": "failed"}
"""One that fails for good is a failure, whether a letter follows or not."""


class Recorder:
    """A listener of facts."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts
        self._tasks = Names()
        self._entries = Names()
        self._running: set[tuple[int, str, int]] = set()

    def expect(self, tasks: Iterable[str]) -> None:
        """Show these from the start, at nothing: Prometheus sees no increase in a series that begins
        with 1. Call it before forking, so that all children show the same names."""
        for name in tasks:
            task = self._tasks.shown(name)
            self._counts.add(all_.RUNS_STARTED, task, by=0)
            self._counts.add(all_.RUNS_IN_PROGRESS, task, by=0)
            for outcome in ("succeeded", "failed"):
                self._counts.add(all_.RUNS_ENDED, task, outcome, by=0)

    def __call__(self, fact: facts.Fact) -> None:
        match fact:
            case facts.RunStarted():
                self._started(fact)
            case facts.RunEnded():
                self._ended(fact)
            case facts.SlotsPublished():
                self._published(fact)
            case facts.SlotMissed(run=run, reason=reason):
                self._counts.add(all_.SLOTS_MISSED, self._entries.shown(run.entry), reason)
            case facts.SlotPublishedAgain(run=run):
                self._counts.add(all_.SLOTS_PUBLISHED_AGAIN, self._entries.shown(run.entry))
            case facts.RunPublishedAgain(run=run, is_whole=is_whole):
                metric = all_.RUNS_PUBLISHED_AGAIN if is_whole else all_.RUNS_LEFT_TO_BROKER
                self._counts.add(metric, self._task(run))
            case facts.TroubleBegan(part=part):
                self._counts.set(all_.TROUBLE, part, to=1)
            case facts.TroubleEnded(part=part):
                self._counts.set(all_.TROUBLE, part, to=0)
            case facts.RunSkipped(run=run, reason=reason):
                self._counts.add(all_.RUNS_SKIPPED, self._task(run), reason)
            case facts.RunKept(run=run, reason=reason):
                self._counts.add(all_.RUNS_KEPT, self._task(run), reason)
            case facts.CopyIgnored(run=run):
                self._counts.add(all_.COPIES_IGNORED, self._task(run))
            case facts.RunOverdue(run=run):
                self._counts.add(all_.RUNS_OVERDUE, self._task(run))
            case facts.LeaseMayBeLost(run=run):
                self._counts.add(all_.LEASES_LOST, self._task(run))
            case facts.DeadLettered(run=run, reason=reason):
                task = "" if run is None else self._task(run)
                self._counts.add(all_.DEAD_LETTERS_SENT, task, reason)

    def _started(self, fact: facts.RunStarted) -> None:
        task = self._task(fact.run)
        self._counts.add(all_.RUNS_STARTED, task)
        if fact.takeovers:
            self._counts.add(all_.RUNS_TAKEN_OVER, task)
        if fact.waited:
            # Not as the store sees it: each offer may be made to another child of the pool.
            self._counts.observe(all_.WAIT, "run", value=fact.waited.total_seconds())
        self._running.add(_name(fact))
        self._counts.add(all_.RUNS_IN_PROGRESS, task)

    def _ended(self, fact: facts.RunEnded) -> None:
        task = self._task(fact.run)
        self._counts.add(all_.RUNS_ENDED, task, _OUTCOMES.get(fact.outcome, fact.outcome))
        # Some end without having begun, and some are ended by the parent, where they did not begin.
        if _name(fact) in self._running:
            self._running.discard(_name(fact))
            self._counts.add(all_.RUNS_IN_PROGRESS, task, by=-1)
            if fact.took is not None:
                self._counts.observe(all_.RUN_DURATION, task, value=fact.took.total_seconds())

    def _published(self, fact: facts.SlotsPublished) -> None:
        entries = Counter(self._entries.shown(run.entry) for run in fact.runs)
        for entry, count in entries.items():
            self._counts.add(all_.SLOTS_PUBLISHED, entry, by=count)
        for run in fact.runs:
            if run.slot is not None:
                lag = max(0.0, (fact.at - run.slot).total_seconds())
                self._counts.observe(all_.SLOT_LAG, value=lag)

    def _task(self, run: facts.RunName) -> str:
        return self._tasks.shown(run.task)


def _name(fact: facts.RunStarted | facts.RunEnded) -> tuple[int, str, int]:
    # With the process: a child that was forked while one runs does not run it.
    return os.getpid(), fact.run.id, fact.attempt
