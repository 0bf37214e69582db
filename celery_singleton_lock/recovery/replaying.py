"""Sends a letter's message again, to where it came from, or says why it cannot go there."""

from __future__ import annotations

from typing import Any

from amqp.exceptions import ChannelError

from celery_singleton_lock.broker import has_queue

from .letters import Outgoing
from .links import Link, publish


class NoWay(Exception):
    """No queue would take the message: it stays where it is."""


def send_again(app: Any, link: Link, message: Outgoing) -> None:
    """Return when it is confirmed. Raises `NoWay`, or what `broker_errors` names."""

    def declare_and_publish(channel: Any) -> None:
        for queue in app.amqp.queues.values():
            if (queue.exchange.name, queue.routing_key) == (message.exchange, message.routing_key):
                queue(channel).declare()
        if not has_queue(channel, message.exchange, message.routing_key):
            raise NoWay(_described(message))
        publish(channel, message)

    try:
        link.attempt(declare_and_publish)
    except ChannelError as error:
        # No such exchange, or none of its queues wants it, or another declared the queue otherwise.
        link.drop()
        raise NoWay(f"{_described(message)} ({error})") from error


def _described(message: Outgoing) -> str:
    return (
        f"no queue takes exchange {message.exchange!r} and routing key {message.routing_key!r}: start "
        "a worker for it, or name it in task_queues"
    )
