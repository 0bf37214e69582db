"""The options of a task, checked where the task is defined. No Celery in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final, Literal

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.settings.values import one_of, read_count, read_duration, shown

Overlap = Literal["skip", "queue", "allow"]
OnDuplicate = Literal["join", "raise"]
OnLeaseLost = Literal["flag", "abort"]
WhenStoreDown = Literal["wait", "run", "fail"]
LockKey = str | Callable[..., str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """None means: as the settings say, or not at all. See docs/tasks.md."""

    unique_on: tuple[str, ...] | None = None
    lock_key: LockKey | None = None
    lock_ttl: timedelta | None = None
    lock_at_least: timedelta | None = None
    lock_at_most: timedelta | None = None
    lock_wait: timedelta | None = None
    overlap: Overlap = "skip"
    on_duplicate: OnDuplicate | None = None
    expect_within: timedelta | None = None
    when_store_down: WhenStoreDown | None = None
    on_lease_lost: OnLeaseLost = "flag"
    dead_letter: bool = True
    max_deliveries: int | None = None
    lock_when_eager: bool = False

    @classmethod
    def read(cls, task: str, values: Mapping[str, Any]) -> TaskOptions:
        """Check each value; `task` names the task in errors."""
        read = {
            name: _READERS[name](f"{name} of task {task!r}", value)
            for name, value in values.items()
            if value is not None
        }
        options = cls(**read)
        options._check(task)
        return options

    def _check(self, task: str) -> None:
        if self.lock_key is not None and self.unique_on is not None:
            _refuse(task, "lock_key and unique_on both say what is one job: give one of them")
        if self.lock_wait is not None and self.overlap != "queue":
            _refuse(
                task, f'lock_wait waits in line, which overlap="{self.overlap}" does not: use "queue"'
            )
        if self.lock_at_least and self.lock_at_most and self.lock_at_least > self.lock_at_most:
            _refuse(task, "lock_at_least is more than lock_at_most")
        if self.overlap == "allow" and (self.lock_at_least or self.lock_at_most):
            _refuse(
                task, 'with overlap="allow" there is no lock that lock_at_least or lock_at_most bound'
            )

    def check_with(self, settings: Settings, task: str) -> None:
        """What only the settings can say: asked before the first lease, not where a task is defined."""
        least = settings.shortest_lock_ttl
        for name in ("lock_ttl", "lock_at_most"):
            span = getattr(self, name)
            if span is not None and span < least:
                _refuse(
                    task,
                    f"{name} = {shown(span)} leaves no time for two renewals: give "
                    f"{shown(least)} or more, or lower singleton_slot_ttl",
                )

    def ttl(self, settings: Settings) -> timedelta:
        return self.lock_ttl or settings.lock_ttl

    def store_down(self, settings: Settings) -> WhenStoreDown:
        return self.when_store_down or settings.when_store_down

    def most_deliveries(self, settings: Settings) -> int:
        return self.max_deliveries or settings.max_deliveries


_OF_OTHERS: Final[Mapping[str, str]] = {
    "raise_on_duplicate": "celery-singleton; here it is on_duplicate='raise'",
    "lock_expiry": "celery-singleton; a lock is renewed here, and ends after lock_ttl or lock_at_most",
    "heimdall": "celery-heimdall; see unique_on and on_duplicate",
}
"""Left over, they would be silently without effect."""


def refuse_unknown_options(
    task: str, given: Sequence[str], known_elsewhere: Callable[[str], bool]
) -> None:
    """Refuse a name that looks like one of ours and is not: it would be silently without effect."""
    for name in given:
        if name in OPTIONS or known_elsewhere(name):
            continue
        if name in _OF_OTHERS:
            _refuse(task, f"{name} is an option of {_OF_OTHERS[name]}")
        close = get_close_matches(name, OPTIONS, n=1, cutoff=0.85)
        if close:
            _refuse(task, f"unknown option {name} (did you mean {close[0]}?)")


def _refuse(task: str, what: str) -> None:
    raise ConfigurationError(f"task {task!r}: {what}")


def _read_names(name: str, value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence | set | frozenset):
        raise ConfigurationError(f"{name} = {shown(value)}: give a list of names of arguments")
    if not all(isinstance(each, str) for each in value):
        raise ConfigurationError(f"{name}: give names of arguments, as text")
    return tuple(sorted(value) if isinstance(value, set | frozenset) else value)


def _read_lock_key(name: str, value: object) -> LockKey:
    if isinstance(value, str) and value:
        return value
    if not callable(value):
        raise ConfigurationError(
            f"{name} = {shown(value)}: give a template such as 'report:{{region}}', or a function of "
            "the task's arguments that returns a text"
        )
    return value


def _read_flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{name} = {shown(value)}: give True or False")
    return value


_READERS: Final[Mapping[str, Callable[[str, object], Any]]] = {
    "unique_on": _read_names,
    "lock_key": _read_lock_key,
    "lock_ttl": read_duration,
    "lock_at_least": read_duration,
    "lock_at_most": read_duration,
    "lock_wait": read_duration,
    "overlap": one_of("skip", "queue", "allow"),
    "on_duplicate": one_of("join", "raise"),
    "expect_within": read_duration,
    "when_store_down": one_of("wait", "run", "fail"),
    "on_lease_lost": one_of("flag", "abort"),
    "dead_letter": _read_flag,
    "max_deliveries": read_count,
    "lock_when_eager": _read_flag,
}
OPTIONS: Final = tuple(_READERS)
