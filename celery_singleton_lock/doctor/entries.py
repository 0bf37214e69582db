"""Checks of the entries of the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from kombu.transport.virtual import Channel as VirtualChannel

from celery_singleton_lock.broker import has_queue
from celery_singleton_lock.core.errors import SingletonError

from .findings import NotApplicable, Trouble, check, problem, said, some, warning
from .patient import Patient, Worker

LATE: Final = timedelta(seconds=60)
PAUSED_LONG: Final = timedelta(days=1)
JOB_WAITS: Final = timedelta(minutes=5)


@check("schedule-tasks")
def scheduled_tasks_are_known(patient: Patient) -> Iterator[Trouble]:
    """Every task of the schedule is known to a worker."""
    workers = _answering(patient)
    known = set().union(*(worker.tasks for worker in workers.values()))
    who = "no worker that answers knows" if workers else "this app does not know"
    if not workers:
        known = set(patient.tasks) | set(patient.app.tasks)
    unknown = {
        name: entry.task for name, entry in patient.contents.entries.items() if entry.task not in known
    }
    for task in sorted(set(unknown.values())):
        names = some(name for name, its_task in unknown.items() if its_task == task)
        yield problem(
            f"{who} the task {task!r} of {names}: each run becomes a dead letter",
            "correct its name, or import its module in the workers (imports, autodiscover_tasks)",
        )


@check("schedule-queues")
def queues_of_the_schedule_are_consumed(patient: Patient) -> Iterator[Trouble]:
    """A worker consumes every queue that the schedule sends to."""
    workers = _answering(patient)
    if not workers:
        raise NotApplicable("no worker answers")
    consumed = set().union(*(worker.queues for worker in workers.values()))
    lonely: dict[str, list[str]] = {}
    for name, entry in patient.contents.entries.items():
        queue = _queue_of(patient, entry)
        if queue is not None and queue not in consumed:
            lonely.setdefault(queue, []).append(name)
    for queue, names in sorted(lonely.items()):
        yield problem(
            f"no worker consumes the queue {queue!r}, to which {some(names)} is sent: its runs wait "
            "there",
            f"start a worker with -Q {queue}, or correct the route or the options of the entry",
        )


@check("schedule-exchanges")
def exchanges_of_the_schedule_have_queues(patient: Patient) -> Iterator[Trouble]:
    """A queue is bound for every entry that names an exchange."""
    channel = patient.broker.default_channel
    if not isinstance(channel, VirtualChannel):
        raise NotApplicable("this broker tells beat itself of a message that no queue takes")
    lost: dict[tuple[str, str], list[str]] = {}
    for name, entry in patient.contents.entries.items():
        destination = _exchange_of(patient, entry)
        if destination is not None and not has_queue(channel, *destination):
            lost.setdefault(destination, []).append(name)
    for (exchange, routing_key), names in sorted(lost.items()):
        yield problem(
            f"no queue is bound to the exchange {exchange!r} for {routing_key!r}, to which "
            f"{some(names)} is sent: beat refuses its slots, and they are not executed",
            "correct exchange and routing_key of the entry, or start a worker that consumes the queue",
        )


@check("schedule-late")
def entries_are_published_in_time(patient: Patient) -> Iterator[Trouble]:
    """Every entry is published in time."""
    now = patient.store.now()
    late = [each for each in patient.entries if each.due_since and now - each.due_since > LATE]
    if late:
        longest = max(now - each.due_since for each in late if each.due_since)
        yield problem(
            f"{len(late)} entries are due and not published, for up to {said(longest)}: "
            f"{some(each.name for each in late)}",
            "see the log of beat: the broker may be away, or refuse their queue; then "
            "`celery -A app singleton schedule list --late`",
        )


@check("schedule-readable")
def added_entries_count(patient: Patient) -> Iterator[Trouble]:
    """Every entry that was added is understood, and counts."""
    contents = patient.contents
    if contents.unreadable:
        yield warning(
            f"these added entries are not understood by this version: {some(contents.unreadable)}. A "
            "newer one wrote them, perhaps; replicas of this version pass them over",
            "finish the deploy, or remove and add them again",
        )
    if contents.shadowed:
        yield warning(
            f"these were added, and beat_schedule has entries of that name, which go first: "
            f"{some(contents.shadowed)}",
            "rename the ones of beat_schedule, and remove what was added",
        )


@check("schedule-paused")
def nothing_is_paused_and_forgotten(patient: Patient) -> Iterator[Trouble]:
    """No pause was forgotten."""
    from celery_singleton_lock.beat.book import Paused

    now = patient.store.now()
    old = [
        f"{said.name} (by {said.by}, {(now - said.at).days} days ago)"
        for said in patient.contents.statements
        if isinstance(said, Paused) and said.is_paused and now - said.at > PAUSED_LONG
    ]
    if old:
        yield warning(
            f"these entries are paused for more than a day: {some(old)}",
            "celery -A app singleton schedule resume NAME, if that was not meant",
        )


@check("schedule-never-due")
def every_entry_is_due_some_day(patient: Patient) -> Iterator[Trouble]:
    """Every entry is due some day."""
    never = [each.name for each in patient.entries if each.next_slot is None and not each.is_paused]
    if never:
        yield warning(
            f"these entries have no slot to come: {some(never)}",
            "correct their schedule or their end, or remove them",
        )


@check("schedule-jobs")
def jobs_are_done(patient: Patient) -> Iterator[Trouble]:
    """Triggers and backfills are done."""
    now = patient.store.now()
    waiting = [job for job in patient.contents.jobs if now - job.at > JOB_WAITS]
    if waiting:
        yield warning(
            f"{len(waiting)} triggers and backfills are not done after {JOB_WAITS}: "
            f"{some(f'{job.kind} of {job.entry}' for job in waiting)}",
            "a long backfill takes its time; otherwise see that a beat lives that knows the entry",
        )


@check("schedule-expiry")
def runs_do_not_expire_before_a_takeover(patient: Patient) -> Iterator[Trouble]:
    """A run does not expire before it could be taken over."""
    least = patient.settings.lock_ttl
    short = []
    for name, entry in patient.contents.entries.items():
        expires = (entry.options or {}).get("expires")
        if isinstance(expires, int | float) and timedelta(seconds=expires) <= least:
            short.append(name)
    if short:
        yield warning(
            f"runs of these entries expire within the lock ttl ({least}): {some(short)}. One whose "
            "worker dies has expired when it is taken over, and is not executed",
            "raise expires of the entry, or lower singleton_lock_ttl",
        )


def _answering(patient: Patient) -> Mapping[str, Worker]:
    try:
        return patient.workers
    except (SingletonError, NotApplicable):
        return {}


def _queue_of(patient: Patient, entry: Any) -> str | None:
    """The queue that an entry is sent to; None if that cannot be told from here."""
    queue = _route_of(patient, entry).get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))


def _exchange_of(patient: Patient, entry: Any) -> tuple[str, str] | None:
    """The exchange and the routing key that an entry names; None if it leaves them to its queue."""
    route = _route_of(patient, entry)
    exchange, routing_key, queue = (route.get(name) for name in ("exchange", "routing_key", "queue"))
    if not exchange or not routing_key:
        return None
    destination = str(getattr(exchange, "name", exchange)), str(routing_key)
    bound = getattr(queue, "exchange", None)
    # Its own queue is declared, and so bound, when it is published.
    is_its_own = bound is not None and destination == (bound.name, getattr(queue, "routing_key", None))
    return None if is_its_own else destination


def _route_of(patient: Patient, entry: Any) -> Mapping[str, Any]:
    """Empty if it cannot be told from here."""
    options = dict(entry.options or {})
    try:
        route: Mapping[str, Any] = patient.app.amqp.router.route(
            options, entry.task, entry.args, entry.kwargs
        )
    except Exception:  # noqa: BLE001 - a router of the user's may do anything
        return {}
    return route
