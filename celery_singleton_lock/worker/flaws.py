"""What is wrong with a task message that Celery would choke on. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_UNREADABLE: Final = object()


def flaw_of(message: Any) -> str | None:
    """Why no worker could ever run the task of this message; None if that is not to be seen from it.

    Only what Celery itself does not notice, and so acknowledges as a success or stumbles over, again
    and again: it tells undecodable messages and unknown tasks well enough.
    """
    headers = message.headers
    payload = _decoded(message)
    if payload is _UNREADABLE or not isinstance(headers, Mapping):
        return None
    if isinstance(payload, Mapping) and ("args" in payload or "task" not in headers):
        if "task" not in headers and "task" not in payload:
            return None
        # Celery's older protocol has all in the body; the headers come first where both are there.
        facts: Mapping[str, Any] = {**payload, **headers}
        body: Any = (payload.get("args", ()), payload.get("kwargs", {}), {})
    elif "task" in headers:
        facts, body = headers, payload
    else:
        return None
    return _flaw_of_facts(facts) or _flaw_of_body(body)


def _flaw_of_facts(facts: Mapping[str, Any]) -> str | None:
    for name in ("task", "id"):
        value = facts.get(name)
        if not isinstance(value, str) or not value:
            return f"{name} must be a text, not {_kind(value)}"
    limits = facts.get("timelimit")
    if limits and not (
        isinstance(limits, list | tuple)
        and len(limits) == 2
        and all(each is None or isinstance(each, int | float) for each in limits)
    ):
        return f"timelimit must be two numbers or null, not {_kind(limits)}"
    return None


def _flaw_of_body(body: Any) -> str | None:
    if not isinstance(body, list | tuple) or len(body) != 3:
        return f"the body must be a list of args, kwargs and embed, not {_kind(body)}"
    args, kwargs, embed = body
    if not isinstance(args, list | tuple):
        return f"args must be a list, not {_kind(args)}"
    if not isinstance(kwargs, Mapping) or not all(isinstance(name, str) for name in kwargs):
        return f"kwargs must be a mapping of names to values, not {_kind(kwargs)}"
    if embed is not None and not isinstance(embed, Mapping):
        return f"embed must be a mapping, not {_kind(embed)}"
    return None


def _decoded(message: Any) -> Any:
    try:
        # Kept by the message: it is not decoded twice.
        return message.payload
    except Exception:  # noqa: BLE001 - Celery will find out, and tells it apart
        return _UNREADABLE


def _kind(value: object) -> str:
    return "nothing" if value is None or value == "" else f"a {type(value).__name__}"
