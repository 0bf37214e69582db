"""The short way for a message that needs nothing of what `send_task` can do besides.

`send_task` looks up some twenty settings a message, subscribes to its result, and makes an
`AsyncResult`: a third of the cost of a burst, for nobody. What is sent here is the same to the letter;
a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from celery.app.task import Task

_PLAIN_OPTIONS: Final = frozenset(
    {"queue", "exchange", "routing_key", "priority", "headers", "serializer", "compression"}
)


def is_plain(app: Any, task: Any, options: Mapping[str, Any]) -> bool:
    """Whether nothing but the plain options of an entry and of a task that is Celery's own is asked
    for; `task` is None where only its name is known."""
    if not options.keys() <= _PLAIN_OPTIONS or app.conf.task_protocol != 2:
        return False
    if task is None:
        return True
    return (
        type(task).apply_async is Task.apply_async
        and not app.conf.task_always_eager
        and task.expires is None
        and getattr(task, "_dump_pydantic_arguments", None) is None
    )


def send_plain(
    app: Any,
    name: str,
    task: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    producer: Any,
    options: dict[str, Any],
) -> None:
    """Publish as ``task.apply_async(args, kwargs, **options)`` would, or ``app.send_task``."""
    shadow = None
    if task is not None:
        if task.typing:
            task.__header__(*args, **kwargs)  # raises TypeError, as a call would
        shadow = task.shadow_name(args, kwargs, options)
        options = {"ignore_result": task.ignore_result, **task._get_exec_options(), **options}
    task_id = options.pop("task_id")
    limits = options.pop("time_limit", None), options.pop("soft_time_limit", None)
    ignore_result = options.pop("ignore_result", None)
    options.pop("expires", None)
    amqp = app.amqp
    options = amqp.router.route(options, name, args, kwargs, task)
    message = amqp.create_task_message(
        task_id,
        name,
        args,
        kwargs,
        reply_to=app.thread_oid,
        time_limit=limits[0],
        soft_time_limit=limits[1],
        create_sent_event=app.conf.task_send_sent_event,
        shadow=shadow,
        ignore_result=ignore_result,
    )
    amqp.send_task_message(producer, name, message, **options)
