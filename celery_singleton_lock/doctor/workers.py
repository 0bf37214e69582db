"""Checks of the workers that answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from .brokers import longest_run
from .findings import NotApplicable, Trouble, check, problem, some, warning
from .patient import Patient

FETCHED_A_PROCESS: Final = 4
"""Celery's own default of worker_prefetch_multiplier."""
_WITH_LIMITS: Final = ("prefork", "solo")


@check("worker-alive")
def workers_are_alive(patient: Patient) -> Iterator[Trouble]:
    """A worker answers."""
    if not patient.workers:
        yield problem(
            "no worker answers: nothing is executed",
            "start one: celery -A app worker. One that is stuck, or whose pool is solo and busy, does "
            "not answer either",
        )


@check("worker-prefetch")
def workers_fetch_little(patient: Patient) -> Iterator[Trouble]:
    """Workers fetch no more than they can start soon."""
    multiplier = patient.conf.worker_prefetch_multiplier
    if not patient.conf.worker_disable_prefetch and multiplier == 0:
        yield warning(
            "worker_prefetch_multiplier is 0: the first worker takes the whole queue, which waits "
            "there while others are idle, and is delivered again as a whole if it dies",
            "worker_prefetch_multiplier = 1",
        )
    visible = patient.visibility_timeout
    spans = [span for task in patient.tasks.values() if (span := longest_run(patient, task))]
    if visible and spans and multiplier > 1 and multiplier * max(spans) > visible:
        yield warning(
            f"a message may wait in its worker for {multiplier} runs, of up to {max(spans)}, and so "
            f"for longer than the visibility timeout ({visible}): it is delivered again before it "
            "began",
            "worker_prefetch_multiplier = 1, or raise visibility_timeout",
        )
    if multiplier > FETCHED_A_PROCESS:
        yield warning(
            f"worker_prefetch_multiplier is {multiplier}: messages wait behind a slow one, while other "
            "workers are idle",
            "worker_prefetch_multiplier = 1, unless all tasks are short",
        )


@check("worker-tasks")
def workers_know_the_same_tasks(patient: Patient) -> Iterator[Trouble]:
    """Workers of one queue know the same tasks."""
    by_queues: dict[frozenset[str], dict[str, frozenset[str]]] = {}
    for worker in patient.workers.values():
        by_queues.setdefault(worker.queues, {})[worker.name] = worker.tasks
    for workers in by_queues.values():
        missing = frozenset().union(*workers.values()) - frozenset.intersection(*workers.values())
        if missing:
            old = [name for name, tasks in workers.items() if missing - tasks]
            yield warning(
                f"{some(old)} do not know {some(sorted(missing))}, which other workers of the same "
                "queues know: what they receive of these becomes a dead letter",
                "finish the deploy; then `celery -A app singleton dead-letters replay`",
            )


@check("worker-time-limits")
def time_limits_are_kept(patient: Patient) -> Iterator[Trouble]:
    """The pool of every worker keeps time limits."""
    limited = [
        name
        for name, task in patient.tasks.items()
        if task.time_limit or task.soft_time_limit or patient.conf.task_time_limit
    ]
    if not limited:
        raise NotApplicable("no task has a time limit")
    others = _without_limits(patient)
    if others:
        yield warning(
            f"the pool of {some(others)} does not keep time limits: {some(limited)} may hang there",
            "use the prefork pool for them, or give them an expect_within, to be told",
        )


@check("worker-abort")
def lost_runs_can_be_aborted(patient: Patient) -> Iterator[Trouble]:
    """A run that lost its lease can be aborted at once."""
    aborting = [
        name
        for name, task in patient.singleton_tasks.items()
        if task.singleton_options.on_lease_lost == "abort"
    ]
    if not aborting:
        raise NotApplicable('no task has on_lease_lost="abort"')
    others = _without_limits(patient)
    if others:
        yield warning(
            f'on_lease_lost="abort" of {some(aborting)} is best effort in the pool of {some(others)}: '
            "a "
            "thread is interrupted only between two steps of Python, not while it waits",
            "use the prefork pool for them, and look at run.ensure_held() before each effect",
        )


@check("worker-dead-letters")
def nobody_consumes_dead_letters(patient: Patient) -> Iterator[Trouble]:
    """No worker consumes the queue of dead letters."""
    queue = patient.settings.dead_letter_queue
    eating = [worker.name for worker in patient.workers.values() if queue in worker.queues]
    if eating:
        yield problem(
            f"{some(eating)} consume the queue of dead letters ({queue}): letters are executed, or "
            "lost",
            "leave it out of -Q and task_queues, or set singleton_dead_letter_queue to another name",
        )


def _without_limits(patient: Patient) -> list[str]:
    """Workers whose tasks run in threads."""
    return [
        worker.name
        for worker in patient.workers.values()
        if worker.pool and not any(each in worker.pool for each in _WITH_LIMITS)
    ]
