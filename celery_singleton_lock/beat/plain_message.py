"""The short way for messages that need nothing of what `send_task` can do besides.

`send_task` looks up some twenty settings a message, routes it, subscribes to its result, and makes an
`AsyncResult`: most of the cost of a burst, and the same for every message of a kind, or for nobody.
What is sent here is the same to the letter; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, Final

from celery import signals
from celery.app import amqp, base, routes
from celery.app import task as tasks
from celery.app.task import Task
from celery.utils.saferepr import saferepr

_PLAIN_OPTIONS: Final = frozenset(
    {
        "queue",
        "exchange",
        "routing_key",
        "priority",
        "headers",
        "serializer",
        "compression",
        "mandatory",
    }
)
_EMBEDDED: Final = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}
_WATCHED: Final = (signals.before_task_publish, signals.after_task_publish, signals.task_sent)
_NUMBERS: Final = (int, float, bool)
_EMPTY: Final = {tuple: "()", dict: "{}"}


class PlainMessages:
    """Knows which messages of a batch are plain, and keeps what those of a kind have in common.

    Make one for every batch: a setting, a task or a route that changes is seen by the next.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._kinds: dict[Any, _Kind | None] = {}
        self._is_sent_as_by_celery = is_sent_as_by_celery(app)
        # Any other router may decide by the arguments.
        self._is_routed_by_name = all(isinstance(each, routes.MapRoute) for each in app.amqp.routes)

    def send(
        self,
        producer: Any,
        name: str,
        args: list[Any],
        kwargs: dict[str, Any],
        options: Mapping[str, Any],
        *,
        task_id: str,
        headers: Mapping[str, Any],
    ) -> bool:
        """Publish as ``apply_async`` of the task would, or ``send_task`` if only the name is known;
        `headers` instead of those in `options`. False, and nothing sent, if that is not plain."""
        if not self._is_sent_as_by_celery:
            return False
        kind = self._kind(name, args, kwargs, options)
        if kind is None:
            return False
        kind.send(self._app, producer, args, kwargs, task_id, headers)
        return True

    def _kind(
        self, name: str, args: list[Any], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> _Kind | None:
        if not self._is_routed_by_name:
            return _kind_of(self._app, name, args, kwargs, options)
        key = name, *((option, options[option]) for option in options if option != "headers")
        try:
            return self._kinds[key]
        except KeyError:
            self._kinds[key] = kind = _kind_of(self._app, name, args, kwargs, options)
            return kind
        except TypeError:  # an option that cannot be hashed
            return _kind_of(self._app, name, args, kwargs, options)


def is_sent_as_by_celery(app: Any) -> bool:
    """Whether nobody put something of his own in the way: a subclass, or a tracer that wraps calls."""
    return (
        type(app.amqp) is amqp.AMQP
        and type(app.amqp.router) is routes.Router
        and app.conf.task_protocol == 2
        and _is_in(base, app.send_task)
        and _is_in(tasks, Task.apply_async)
    )


def is_plain(app: Any, task: Any, options: Mapping[str, Any]) -> bool:
    """Whether nothing but the plain options of an entry and of a task that is Celery's own is asked
    for; `task` is None where only its name is known."""
    if not options.keys() <= _PLAIN_OPTIONS:
        return False
    if task is None:
        return True
    return (
        type(task).apply_async is Task.apply_async
        and type(task).shadow_name is Task.shadow_name
        and not app.conf.task_always_eager
        and task.expires is None
        and (task.soft_time_limit or 0) <= (task.time_limit or float("inf"))
        and not task.__v2_compat__
        and getattr(task, "_dump_pydantic_arguments", None) is None
    )


def _is_in(module: Any, function: Any) -> bool:
    # By its very type: the wrappers of tracers pretend to be what they wrap.
    return (
        type(function) in (FunctionType, MethodType)
        and function.__code__.co_filename == module.__file__
    )


@dataclass(frozen=True, slots=True)
class _Kind:
    """What messages of one task with the same options have in common."""

    name: str
    task: Any
    creation: Mapping[str, Any]
    """For Celery's `create_task_message`."""
    routing: Mapping[str, Any]
    """For Celery's `send_task_message`."""
    headers: Mapping[str, Any]
    publishing: Mapping[str, Any]
    """What these two give to the producer. Of no use where `is_watched`."""
    is_watched: bool
    """Whether somebody wants to be told of every message, and may change it."""
    repr_levels: int

    def send(
        self,
        app: Any,
        producer: Any,
        args: list[Any],
        kwargs: dict[str, Any],
        task_id: str,
        headers: Mapping[str, Any],
    ) -> None:
        if self.task is not None and self.task.typing:
            self.task.__header__(*args, **kwargs)  # raises TypeError, as a call would
        if self.is_watched:
            message = app.amqp.create_task_message(task_id, self.name, args, kwargs, **self.creation)
            options = {**self.routing, "headers": headers, "retry": False}
            app.amqp.send_task_message(producer, self.name, message, **options)
            return
        # Celery's own makes an empty list of arguments a tuple; the letter is not the same.
        given = args or ()
        sizes = app.amqp.argsrepr_maxsize, app.amqp.kwargsrepr_maxsize
        producer.publish(
            (given, kwargs, _EMBEDDED),
            headers={
                **self.headers,
                "id": task_id,
                "root_id": task_id,
                "argsrepr": text_of(given, sizes[0], self.repr_levels),
                "kwargsrepr": text_of(kwargs, sizes[1], self.repr_levels),
                **headers,
            },
            correlation_id=task_id,
            **self.publishing,
        )


def _kind_of(
    app: Any, name: str, args: list[Any], kwargs: dict[str, Any], options: Mapping[str, Any]
) -> _Kind | None:
    """None if it is not plain. By Celery's own hands: it makes one message, that nobody gets."""
    task = app.tasks.get(name)
    if not is_plain(app, task, options):
        return None
    given = {**options, "headers": {}}
    if task is not None:
        given = {"ignore_result": task.ignore_result, **task._get_exec_options(), **given}
    given.pop("expires", None)
    creation = {
        "reply_to": app.thread_oid,
        "time_limit": given.pop("time_limit", None),
        "soft_time_limit": given.pop("soft_time_limit", None),
        "ignore_result": given.pop("ignore_result", None),
        "create_sent_event": app.conf.task_send_sent_event,
    }
    routing = app.amqp.router.route(given, name, args, kwargs, task)
    is_watched = bool(app.conf.task_send_sent_event or any(each.receivers for each in _WATCHED))
    published = _Published()
    if not is_watched:
        message = app.amqp.create_task_message("", name, **creation)
        app.amqp.send_task_message(published, name, message, **{**routing, "retry": False})
    headers = published.options.pop("headers", {})
    published.options.pop("correlation_id", None)
    levels = app.conf.task_repr_maxlevels
    return _Kind(name, task, creation, routing, headers, published.options, is_watched, levels)


class _Published:
    """A producer that keeps what it should have published."""

    def __init__(self) -> None:
        self.options: dict[str, Any] = {}

    def publish(self, body: Any, **options: Any) -> None:
        self.options = options


def text_of(given: Sequence[Any] | Mapping[str, Any], size: int, levels: int) -> str:
    """As Celery's `saferepr` has it, which takes its time also where nothing needs care."""
    if not given and type(given) in _EMPTY:
        return _EMPTY[type(given)]
    if type(given) is list and all(type(each) in _NUMBERS for each in given):
        text = str(given)
        if len(text) < size:
            return text
    return str(saferepr(given, size, maxlevels=levels))
