"""Checks of the options of tasks."""

from __future__ import annotations

from collections.abc import Iterator

from celery_singleton_lock.core.errors import ConfigurationError

from .brokers import longest_backoff, longest_run
from .findings import NotApplicable, Trouble, check, problem, some, warning
from .patient import Patient


@check("task-options")
def options_work_with_the_settings(patient: Patient) -> Iterator[Trouble]:
    """The options of every task work with the settings."""
    for name, task in patient.singleton_tasks.items():
        try:
            task.singleton_options.check_with(patient.settings, name)
        except ConfigurationError as error:
            yield problem(str(error), "correct it: workers do not start with it")


@check("task-singleton")
def scheduled_tasks_are_singletons(patient: Patient) -> Iterator[Trouble]:
    """Every scheduled task is a SingletonTask."""
    from celery_singleton_lock.worker.task import SingletonTask

    plain = {
        entry.task
        for entry in patient.contents.entries.values()
        if entry.task in patient.tasks and not isinstance(patient.tasks[entry.task], SingletonTask)
    }
    if plain:
        yield warning(
            f"these scheduled tasks are plain Celery tasks: {some(sorted(plain))}. A run of theirs "
            "that is delivered twice is executed twice, and two of them may overlap",
            "@app.task(base=SingletonTask)",
        )


@check("task-acks-late")
def tasks_are_acknowledged_late(patient: Patient) -> Iterator[Trouble]:
    """Messages are acknowledged after the run, and put back when a worker is lost."""
    early = [name for name, task in patient.singleton_tasks.items() if not task.acks_late]
    if early:
        yield warning(
            f"acks_late is off for {some(early)}: the broker forgets a run when it starts. If its "
            "worker dies before it took its lock, the run is lost",
            "leave acks_late on: delivering again is safe for a SingletonTask",
        )
    dropped = [
        name
        for name, task in patient.singleton_tasks.items()
        if task.acks_late and not task.reject_on_worker_lost
    ]
    if dropped:
        yield warning(
            f"reject_on_worker_lost is off for {some(dropped)}: when a process of the pool is killed, "
            "say for want of memory, its run is acknowledged as failed",
            "leave reject_on_worker_lost on: max_deliveries stops what kills its workers again and "
            "again",
        )


@check("task-lock-bound")
def locks_outlive_their_tasks(patient: Patient) -> Iterator[Trouble]:
    """A lock is kept for as long as its task may run."""
    short = []
    for name, task in patient.singleton_tasks.items():
        bound, longest = task.singleton_options.lock_at_most, longest_run(patient, task)
        if bound is not None and longest is not None and bound < longest:
            short.append(name)
    if short:
        yield problem(
            f"lock_at_most of these tasks is less than they may take (time_limit, expect_within): "
            f"{some(short)}. Another run begins while the first one is at work",
            "raise lock_at_most, or lower the time limit",
        )


@check("task-ttl")
def takeover_is_quicker_than_the_task(patient: Patient) -> Iterator[Trouble]:
    """A dead worker's run is taken over sooner than a run may take."""
    slow = []
    for name, task in patient.singleton_tasks.items():
        longest = longest_run(patient, task)
        if longest is not None and task.singleton_options.ttl(patient.settings) > longest:
            slow.append(name)
    if slow:
        yield warning(
            f"the lock ttl of these tasks is longer than a run may take: {some(slow)}. After the death "
            "of a worker, its job is closed for longer than it needs",
            "lower lock_ttl (or singleton_lock_ttl): leases are renewed while a task runs",
        )


@check("task-bounded")
def tasks_cannot_hang_unseen(patient: Patient) -> Iterator[Trouble]:
    """A task that hangs is ended, or reported."""
    endless = [
        name
        for name, task in patient.singleton_tasks.items()
        if longest_run(patient, task) is None and task.singleton_options.lock_at_most is None
    ]
    if endless:
        yield warning(
            f"these tasks have no time limit and no expect_within: {some(endless)}. One that hangs "
            "keeps its lock for ever, and nobody is told",
            "give each an expect_within (reported as overdue), or a time_limit (ended), or set "
            "task_time_limit for all",
        )


@check("task-join")
def joined_results_are_kept(patient: Patient) -> Iterator[Trouble]:
    """Who joins an equal call gets its result."""
    from celery.backends.base import DisabledBackend

    joining = {
        name: task
        for name, task in patient.singleton_tasks.items()
        if task.singleton_options.on_duplicate == "join"
    }
    if not joining:
        raise NotApplicable('no task has on_duplicate="join"')
    lost = [
        name
        for name, task in joining.items()
        if task.ignore_result or isinstance(task.backend, DisabledBackend)
    ]
    if lost:
        yield warning(
            f'these tasks have on_duplicate="join", and keep no result: {some(lost)}. Whoever joins a '
            "call "
            "waits for ever",
            "set a result_backend, and leave ignore_result off for them",
        )


@check("task-remembered")
def runs_are_remembered_beyond_their_retries(patient: Patient) -> Iterator[Trouble]:
    """A run is remembered beyond its longest pause between attempts."""
    remember = patient.settings.remember_for
    long = [name for name, task in patient.singleton_tasks.items() if longest_backoff(task) > remember]
    if long:
        yield warning(
            f"retries of these tasks may wait for longer than a run is remembered ({remember}): "
            f"{some(long)}. A copy of an earlier attempt would be executed",
            "raise singleton_remember_for, or lower retry_backoff_max",
        )
