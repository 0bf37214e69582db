"""Checks of who publishes the schedule."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from celery_singleton_lock.core.errors import SingletonError

from .findings import NotApplicable, Trouble, check, problem, some, warning
from .patient import Patient

FRESH_S: Final = 600.0
"""Stock beat writes its file every three minutes."""


@check("beat-scheduler")
def scheduler_is_ours(patient: Patient) -> Iterator[Trouble]:
    """Beat is started with this scheduler."""
    _needs_a_schedule(patient)
    if is_our_scheduler(patient.conf.beat_scheduler):
        return
    try:
        if patient.members:
            # Given on the command line.
            return
    except SingletonError:
        pass
    yield problem(
        f"beat_scheduler is {patient.conf.beat_scheduler!r}: a beat that is started without -S "
        "singleton is a stock one. Two of those publish everything twice, and one that dies loses "
        "slots",
        'beat_scheduler = "celery_singleton_lock:SingletonScheduler"',
    )


@check("beat-alive")
def two_beats_are_alive(patient: Patient) -> Iterator[Trouble]:
    """More than one replica of beat is alive."""
    members = patient.members
    if not members:
        _needs_a_schedule(patient)
        yield problem(
            "no replica of beat is alive: nothing is published, and no run of a dead worker is taken "
            "over",
            "start two: celery -A app beat -S singleton",
        )
    elif len(members) == 1:
        yield warning(
            f"only one replica of beat is alive: {members[0]}. If it dies, slots wait until it is back",
            "start a second one, on another host: replicas need nothing of each other",
        )


@check("beat-hosts")
def beats_are_on_several_hosts(patient: Patient) -> Iterator[Trouble]:
    """The replicas of beat do not share one host."""
    hosts = {member.partition(":")[0] for member in patient.members}
    if len(patient.members) < 2:
        raise NotApplicable("fewer than two replicas of beat are alive")
    if len(hosts) == 1:
        yield warning(
            f"all replicas of beat run on {hosts.pop()}: when it is gone, so is the schedule",
            "start one on another host",
        )


@check("beat-other-scheduler")
def nobody_else_publishes_the_schedule(patient: Patient) -> Iterator[Trouble]:
    """Nobody else publishes the schedule."""
    for sign in (_schedule_file(), _strange_beat(patient), _redbeat(patient)):
        if sign:
            yield problem(
                f"{sign}: what it publishes has other ids, so every slot is executed twice",
                "stop it; the state of this scheduler is in the lease store, and it needs no file",
            )


def is_our_scheduler(given: Any) -> bool:
    from celery.utils.imports import load_extension_class_names, symbol_by_name

    from celery_singleton_lock.beat.scheduler import SingletonSchedulerMixin

    aliases = dict(load_extension_class_names("celery.beat_schedulers"))
    try:
        scheduler = symbol_by_name(given, aliases=aliases)
    except (ImportError, AttributeError, ValueError):
        return False
    return isinstance(scheduler, type) and issubclass(scheduler, SingletonSchedulerMixin)


def _needs_a_schedule(patient: Patient) -> None:
    try:
        entries: Any = patient.contents.entries
    except SingletonError:
        entries = patient.conf.beat_schedule
    if not entries:
        raise NotApplicable("there is no schedule")


def _schedule_file() -> str:
    for path in sorted(Path().glob("celerybeat-schedule*")):
        age = time.time() - path.stat().st_mtime
        if age < FRESH_S:
            return f"a stock beat runs in this directory: it wrote {path.name} {age:.0f} s ago"
    return ""


def _strange_beat(patient: Patient) -> str:
    """Beats that answer Celery's ping, and are not among ours."""
    try:
        answering = Counter(name.partition("@")[2] for name in patient.beat_nodes)
        ours = Counter(member.partition(":")[0] for member in patient.members)
    except (SingletonError, NotApplicable):
        return ""
    strange = sorted((answering - ours).elements())
    return f"a beat with another scheduler runs on {some(strange)}" if strange else ""


def _redbeat(patient: Patient) -> str:
    """The lock that a running redbeat holds, where it is by default: in the broker."""
    prefix = patient.conf.get("redbeat_key_prefix") or "redbeat:"
    try:
        is_held = patient.redis_of_broker.exists(f"{prefix}:lock")
    except (SingletonError, NotApplicable):
        return ""
    return "a redbeat runs on this broker: it holds its lock" if is_held else ""
