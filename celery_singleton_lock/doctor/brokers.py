"""Checks of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from celery_singleton_lock.core.errors import BrokerUnavailable
from celery_singleton_lock.settings.values import read_duration

from .findings import NotApplicable, Trouble, check, problem, said, some, warning
from .patient import Patient
from .stores import evicting, filling, forgetting

CONSUMER_TIMEOUT: Final = timedelta(minutes=30)
"""RabbitMQ's default: who keeps a message unacknowledged for longer is cut off."""
MUTEX_EXPIRE_S: Final = 300
"""kombu's default, on Redis: who dies while he puts messages back is waited for so long."""


@check("broker-answers")
def broker_answers(patient: Patient) -> Iterator[Trouble]:
    """The broker answers."""
    try:
        _ = patient.broker
    except BrokerUnavailable as error:
        yield problem(
            f"the broker did not answer: {error}. Nothing is published or executed",
            "start it, or correct broker_url; replicas go on by themselves when it is back",
        )


@check("broker-eviction")
def messages_are_not_evicted(patient: Patient) -> Iterator[Trouble]:
    """The broker throws no message away."""
    yield from evicting(patient.broker_server, "queues", "runs are lost that were published")


@check("broker-persistence")
def messages_survive_a_restart(patient: Patient) -> Iterator[Trouble]:
    """Messages survive a restart of the broker."""
    yield from forgetting(patient.broker_server, "messages that nobody has executed yet")


@check("broker-memory")
def broker_has_memory_left(patient: Patient) -> Iterator[Trouble]:
    """The broker has memory left."""
    yield from filling(patient.broker_server)


@check("broker-confirms")
def publishing_is_confirmed(patient: Patient) -> Iterator[Trouble]:
    """RabbitMQ confirms what your code publishes."""
    if patient.broker_scheme not in ("amqp", "amqps", "pyamqp"):
        raise NotApplicable("the broker is not RabbitMQ")
    if not (patient.conf.broker_transport_options or {}).get("confirm_publish"):
        yield warning(
            "your own calls (delay, apply_async, a chain's next step) are not confirmed by RabbitMQ: a "
            "message that it refuses, or loses in a restart, is lost without an error. (Beat and dead "
            "letters confirm theirs themselves.)",
            'broker_transport_options = {"confirm_publish": True}',
        )


@check("broker-visibility-run")
def runs_end_before_they_are_delivered_again(patient: Patient) -> Iterator[Trouble]:
    """A run ends before the broker delivers its message again."""
    visible = _visibility(patient)
    long = {
        name: longest
        for name, task in patient.tasks.items()
        if (longest := longest_run(patient, task)) and longest > visible and _is_late(task)
    }
    if long:
        yield warning(
            f"these tasks may run for longer than the visibility timeout ({visible}): {some(long)}. "
            "Their messages are delivered again meanwhile: a SingletonTask keeps the copy aside until "
            "the run has ended, any other runs twice",
            f"broker_transport_options = {{'visibility_timeout': {_seconds(2 * max(long.values()))}}}",
        )


@check("broker-visibility-backoff")
def retries_wait_less_than_the_visibility_timeout(patient: Patient) -> Iterator[Trouble]:
    """A retry waits for less than the visibility timeout."""
    visible = _visibility(patient)
    long = {
        name: longest
        for name, task in patient.tasks.items()
        if (longest := longest_backoff(task)) > visible
    }
    if long:
        yield warning(
            f"retries of these tasks may wait for longer than the visibility timeout ({visible}): "
            f"{some(long)}. The broker delivers each again while it waits, and again to the next "
            "worker",
            "lower retry_backoff_max (or default_retry_delay) of the task, or raise visibility_timeout",
        )


@check("broker-redelivery")
def dead_restorer_is_not_waited_for(patient: Patient) -> Iterator[Trouble]:
    """A worker that dies while it puts messages back does not keep others from it for long."""
    if patient.broker_scheme not in ("redis", "rediss", "redis+socket", "sentinel"):
        raise NotApplicable("the broker is not Redis")
    name = "unacked_mutex_expire"
    configured = (patient.conf.broker_transport_options or {}).get(name, MUTEX_EXPIRE_S)
    kept_for = read_duration(f"broker_transport_options[{name!r}]", configured)
    visible = _visibility(patient)
    if 2 * kept_for > visible:
        seconds = max(5, min(30, _seconds(visible / 10)))
        yield warning(
            f"a worker that dies while it puts back what was not acknowledged keeps all others from it "
            f"for {said(kept_for)} (unacked_mutex_expire), which is long beside the visibility timeout "
            f"({said(visible)}): messages that were only received wait for so long",
            f"broker_transport_options = {{'unacked_mutex_expire': {seconds}}}",
        )


@check("broker-consumer-timeout")
def runs_end_before_rabbitmq_cuts_them_off(patient: Patient) -> Iterator[Trouble]:
    """A run ends before RabbitMQ cuts its worker off."""
    if patient.broker_scheme not in ("amqp", "amqps", "pyamqp"):
        raise NotApplicable("the broker is not RabbitMQ")
    long = [
        name
        for name, task in patient.tasks.items()
        if _is_late(task)
        and max(longest_run(patient, task) or timedelta(0), longest_backoff(task)) > CONSUMER_TIMEOUT
    ]
    if long:
        yield warning(
            f"these tasks may keep a message for longer than {CONSUMER_TIMEOUT}, RabbitMQ's default "
            f"consumer_timeout: {some(long)}. It then closes the channel of their worker, and delivers "
            "all that the worker had again",
            "raise consumer_timeout in rabbitmq.conf, or as x-consumer-timeout of the queue",
        )


def longest_run(patient: Patient, task: Any) -> timedelta | None:
    """What a task itself says of how long it may take; None: it says nothing."""
    limit = task.time_limit or patient.conf.task_time_limit
    soft = task.soft_time_limit or patient.conf.task_soft_time_limit
    expected = getattr(getattr(task, "singleton_options", None), "expect_within", None)
    spans = [timedelta(seconds=float(each)) for each in (limit or soft,) if each]
    return max([*spans, *([expected] if expected else [])], default=None)


def longest_backoff(task: Any) -> timedelta:
    """The longest that a retry of `task` may wait, as far as it is configured."""
    ask = getattr(task, "longest_backoff", None)
    if ask is not None:
        return timedelta(seconds=ask())
    if not getattr(task, "autoretry_for", None):
        return timedelta(0)
    if getattr(task, "retry_backoff", False):
        return timedelta(seconds=float(getattr(task, "retry_backoff_max", 600)))
    return timedelta(seconds=float(task.default_retry_delay or 0))


def _visibility(patient: Patient) -> timedelta:
    visible = patient.visibility_timeout
    if not visible:
        raise NotApplicable("this broker has no visibility timeout")
    return visible


def _is_late(task: Any) -> bool:
    """Whether its message is acknowledged after the run: an early one is not delivered again."""
    return bool(task.acks_late)


def _seconds(span: timedelta) -> int:
    return round(span.total_seconds())
