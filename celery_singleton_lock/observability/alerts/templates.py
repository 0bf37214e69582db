"""What is sent of an alert: as Slack, PagerDuty, or a program of your own reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from .alert import Alert

LONGEST_SUMMARY: Final = 1000
LONGEST_DETAIL: Final = 500
MARKS: Final = {"critical": ":rotating_light:", "error": ":x:", "warning": ":warning:", "info": ":ok:"}


class Sender(NamedTuple):
    """Who tells it."""

    app: str
    host: str


Template = Callable[[Alert, Sender, str | None], dict[str, Any]]
"""Called with the key of the service, too, where it has one."""


def plain(alert: Alert, sender: Sender, _key: str | None) -> dict[str, Any]:
    return {
        "kind": alert.kind,
        "about": alert.about,
        "severity": alert.severity,
        "summary": alert.summary[:LONGEST_SUMMARY],
        "at": alert.at.isoformat(),
        "is_over": alert.is_over,
        "more": alert.more,
        "app": sender.app,
        "host": sender.host,
        "details": details_of(alert),
    }


def slack(alert: Alert, sender: Sender, _key: str | None) -> dict[str, Any]:
    """Also read by Mattermost and Rocket.Chat."""
    mark = MARKS["info" if alert.is_over else alert.severity]
    lines = "\n".join(f"{name}: {_escaped(value)}" for name, value in details_of(alert).items())
    summary = _escaped(alert.summary[:LONGEST_SUMMARY])
    return {
        "text": f"{mark} *{_escaped(sender.app)}*: {summary}\n{lines}\non {_escaped(sender.host)}",
    }


def pagerduty(alert: Alert, sender: Sender, key: str | None) -> dict[str, Any]:
    """Events API v2. What is over resolves what it is about."""
    event = {"routing_key": key, "dedup_key": f"{sender.app}:{alert.about}"[:255]}
    if alert.is_over:
        return {**event, "event_action": "resolve"}
    return {
        **event,
        "event_action": "trigger",
        "payload": {
            "summary": f"{sender.app}: {alert.summary}"[:LONGEST_SUMMARY],
            "source": sender.host,
            "severity": alert.severity,
            "timestamp": alert.at.isoformat(),
            "component": "celery-singleton-lock",
            "class": alert.kind,
            "custom_details": details_of(alert),
        },
    }


TEMPLATES: Final[Mapping[str, Template]] = {"plain": plain, "slack": slack, "pagerduty": pagerduty}


def details_of(alert: Alert) -> dict[str, Any]:
    return {
        name: value if isinstance(value, int | float) else str(value)[:LONGEST_DETAIL]
        for name, value in alert.details.items()
    }


def _escaped(value: object) -> str:
    """A name must not become a link, or call the whole channel."""
    return str(value).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
