"""What makes two calls one job: the key of a task's lease, from its arguments. No Celery in it."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import partial
from string import Formatter
from typing import Any, Final
from uuid import UUID

from celery_singleton_lock.core.errors import ConfigurationError

from .options import TaskOptions

LONGEST_KEY_BYTES: Final = 400
"""What people write into a key is kept as it is up to here, and as a digest beyond."""


# json.dumps makes a new encoder for each call that wants something else than its defaults.
_canonical: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


class UniqueKey:
    """Names the job of a call: ``<task>:<digest>``, or what `lock_key` gives.

    Arguments are named by the signature, with its defaults, so that ``f(1)``, ``f(a=1)`` and a call
    that relies on the default are one job.
    """

    def __init__(self, task: str, signature: inspect.Signature, options: TaskOptions) -> None:
        self._task = task
        self._signature = signature
        self._unique_on = options.unique_on
        self._lock_key = options.lock_key
        self._check()
        # Most tasks are called by position, with all arguments: inspect takes ten times as long.
        parameters = tuple(signature.parameters.values())
        is_plain = all(each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for each in parameters)
        self._plain_names = tuple(signature.parameters) if is_plain else None

    def of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        """Raises `ConfigurationError` for arguments of which no digest can be made, and TypeError for
        those that the task does not take."""
        if self._unique_on == ():
            return self._task
        if callable(self._lock_key):
            return self._checked(self._made_by(partial(self._lock_key, *args, **kwargs)))
        named = self._named(args, kwargs)
        if self._lock_key is not None:
            template = partial(_Template().vformat, self._lock_key, (), named)
            return self._checked(self._made_by(template))
        unique = named if self._unique_on is None else {name: named[name] for name in self._unique_on}
        return f"{self._task}:{self._digest(unique)}"

    def _named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        names = self._plain_names
        if names is not None and not kwargs and len(args) == len(names):
            return dict(zip(names, args, strict=True))
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for parameter in self._signature.parameters.values():
            if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                # unique_on may name what only arrives by keyword.
                named = {**named.pop(parameter.name), **named}
        return named

    def _digest(self, unique: Mapping[str, Any]) -> str:
        try:
            text = _canonical(_plain(unique))
        except (_NotPlain, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"no digest can be made of the arguments of task {self._task!r}: {error}. Name those "
                "that make it one job with unique_on, or give a lock_key"
            ) from None
        return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=16).hexdigest()

    def _made_by(self, user: Callable[[], Any]) -> Any:
        try:
            return user()
        except TypeError:
            raise  # such arguments, most often: the task does not take them, either
        except Exception as error:
            raise ConfigurationError(
                f"lock_key of task {self._task!r} cannot be made of its arguments: {error!r}"
            ) from error

    def _checked(self, key: object) -> str:
        if not isinstance(key, str) or not key:
            raise ConfigurationError(
                f"lock_key of task {self._task!r} gave {key!r}: it must give a text that is not empty"
            )
        raw = key.encode(errors="surrogatepass")
        return (
            key if len(raw) <= LONGEST_KEY_BYTES else hashlib.blake2b(raw, digest_size=16).hexdigest()
        )

    def _check(self) -> None:
        self._check_names("unique_on", self._unique_on or ())
        if isinstance(self._lock_key, str):
            self._check_names("lock_key", _fields(self._task, self._lock_key))

    def _check_names(self, option: str, names: Iterable[str]) -> None:
        parameters = self._signature.parameters
        if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values()):
            return
        for name in names:
            if name not in parameters:
                raise ConfigurationError(
                    f"{option} of task {self._task!r} names {name!r}, which is no parameter of it: "
                    f"choose from {', '.join(parameters) or 'none: it takes no arguments'}"
                )


class _Template(Formatter):
    """Like str.format; a template reaches no attributes, since `{user.password}` would be a key."""

    def get_field(self, field_name: str, args: Any, kwargs: Any) -> Any:
        return kwargs[field_name], field_name


def _fields(task: str, template: str) -> list[str]:
    try:
        fields = [field for _, field, _, _ in Formatter().parse(template) if field is not None]
    except ValueError as error:
        raise ConfigurationError(
            f"lock_key {template!r} of task {task!r} is no template: {error}"
        ) from None
    for field in fields:
        if not field.isidentifier():
            raise ConfigurationError(
                f"lock_key {template!r} of task {task!r}: {{{field}}} is no name of an argument; use a "
                "function for more"
            )
    return fields


class _NotPlain(Exception):
    pass


def _plain(value: object) -> object:
    """As JSON would bring it to the worker: a digest must be the same on both sides."""
    # By hand and not by json's `default`: that is not asked about keys.
    match value:
        case Enum():
            return _plain(value.value)
        case None | bool() | int() | float() | str():
            return value
        case Mapping():
            return {_key(key): _plain(each) for key, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case set() | frozenset():
            return sorted((_plain(each) for each in value), key=repr)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID() | Decimal():
            return str(value)
        case bytes() | bytearray():
            return bytes(value).hex()
    raise _NotPlain(f"it cannot be told whether two {type(value).__qualname__} are equal")


def _key(key: object) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain)


def signature_of(function: Callable[..., Any], *, is_method: bool) -> inspect.Signature:
    """Of the body of a task, without `self`."""
    signature = inspect.signature(function)
    if not is_method:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])
