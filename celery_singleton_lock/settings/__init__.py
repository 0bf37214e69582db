"""Every ``singleton_*`` setting: what it means, what it may be, and what it is when it is not set.

Read once, from the Celery config. What cannot work is refused here, before anything is touched, by an
error that names the setting and says what to do; no error and no repr contains a password.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple

from celery_singleton_lock.core.clock import DRIFT
from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import HIDDEN

from .alerts import (
    ALERTS,
    BY_DEFAULT,
    read_addresses,
    read_alerts,
    read_mail_address,
    read_secret,
    read_smtp_url,
    read_webhook,
)
from .broker import lock_url_of_broker, split_brokers, visibility_timeout
from .urls import read_database_url, read_lock_url
from .values import (
    one_of,
    read_address,
    read_count,
    read_drift,
    read_duration,
    read_flag,
    read_name,
    read_patience,
    refuse,
    shown,
)

PREFIX: Final = "singleton_"
SHORTEST_LOCK_TTL: Final = timedelta(seconds=1)
SHORTEST_SLOT_TTL: Final = timedelta(seconds=0.5)
START_WITHIN: Final = timedelta(minutes=5)
REMEMBER_FOR: Final = timedelta(hours=2)


class Description(NamedTuple):
    """One row of the reference page."""

    name: str
    kind: str
    default: str
    doc: str


def _about(
    read: Callable[[str, object], object],
    kind: str,
    doc: str,
    default: str = "",
    *,
    is_secret: bool = False,
) -> dict[str, Any]:
    """`default` says what the default is, where it is not a plain value. Of a secret nothing is shown,
    not even as much as of a URL with a password."""
    return {"read": read, "kind": kind, "doc": doc, "default": default, "is_secret": is_secret}


_seconds: Final = partial(_about, read_duration, "seconds, or a timedelta")
_text: Final = partial(_about, read_name, "text")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """All settings, checked. None in the config means: not set."""

    lock_url: str | tuple[str, ...] = field(metadata=_about(
        read_lock_url, "URL, or a list of three or more Redis URLs",
        "Where leases are kept. Several independent Redis servers make a quorum (Redlock).",
        "the broker, where it is Redis; otherwise required",
    ))  # fmt: skip
    database_url: str | None = field(default=None, metadata=_about(
        read_database_url, "SQLAlchemy URL",
        "The ledger: history, effects that happen exactly once, the outbox.",
    ))  # fmt: skip
    outbox_url: str | None = field(default=None, metadata=_about(
        read_database_url, "SQLAlchemy URL",
        "The database with the outbox, which is that of your own transactions.",
        "the ledger's, if there is one",
    ))  # fmt: skip
    outbox_relay: Literal["beat", "command"] = field(default="beat", metadata=_about(
        one_of("beat", "command"), "beat or command",
        "Who publishes what is in the outbox: every beat replica, or only "
        "`celery -A app singleton outbox relay`, which may run in any case.",
    ))  # fmt: skip
    outbox_max_tries: int = field(default=8, metadata=_about(
        read_count, "whole number",
        "A row of the outbox that the broker refused this many times becomes a dead letter. A broker "
        "that is away does not count.",
    ))  # fmt: skip
    outbox_keep: timedelta = field(default=timedelta(hours=1), metadata=_seconds(
        "How long rows of the outbox are kept after they were published, for people.",
    ))  # fmt: skip
    history_keep_for: timedelta = field(default=timedelta(days=30), metadata=_seconds(
        "How long the ledger keeps a run in its history; never less than it is remembered.",
    ))  # fmt: skip
    history_keep_most: int = field(default=1_000_000, metadata=_about(
        read_count, "whole number",
        "With more runs than these, the oldest go sooner; but none that is still remembered.",
    ))  # fmt: skip
    key_prefix: str = field(default="singleton", metadata=_text(
        "Keeps applications apart that share a store: give each its own.",
    ))  # fmt: skip
    lock_ttl: timedelta = field(default=timedelta(seconds=30), metadata=_seconds(
        "How long a lease outlives the last sign of life of its holder, and so the time until the run "
        "of a killed worker is taken over. At least 1 second and four store timeouts.",
    ))  # fmt: skip
    clock_drift: float = field(default=DRIFT, metadata=_about(
        read_drift, "part of a ttl",
        "By how much the clocks of two hosts may drift apart: a lease ends that much earlier for its "
        "holder. At most 0.05.",
    ))  # fmt: skip
    slot_ttl: timedelta = field(default=timedelta(seconds=3), metadata=_seconds(
        "How long a beat replica may take to publish a slot before another one does. At least half a "
        "second, at most the lock ttl. A store call times out after a third of it, or after 1 second.",
    ))  # fmt: skip
    remember_for: timedelta = field(default=REMEMBER_FOR, metadata=_seconds(
        "How long a finished run is remembered, so that a late copy of its message is not executed. At "
        "least the lock ttl, and twice the broker's visibility timeout.",
        "7200 s, or the least that is allowed if that is more",
    ))  # fmt: skip
    start_within: timedelta | None = field(default=START_WITHIN, metadata=_about(
        read_patience, "seconds, a timedelta, or False",
        "A scheduled run that no worker has started within this time is published again, under its id: "
        "its message may be lost. False: never. Less than half of the time that runs are remembered.",
        "300 s, or a quarter of singleton_remember_for if that is less",
    ))  # fmt: skip
    catch_up: Literal["none", "latest", "all"] = field(default="latest", metadata=_about(
        one_of("none", "latest", "all"), "none, latest or all",
        "Which slots to publish of those that were missed while no beat ran.",
    ))  # fmt: skip
    catch_up_window: timedelta = field(default=timedelta(days=1), metadata=_seconds(
        "Slots older than this are not caught up.",
    ))  # fmt: skip
    when_store_down: Literal["wait", "run", "fail"] = field(default="wait", metadata=_about(
        one_of("wait", "run", "fail"), "wait, run or fail",
        "What a worker does with a task while the store is away. With run it may be executed twice.",
    ))  # fmt: skip
    dead_letter_queue: str = field(default="dead-letters", metadata=_text(
        "The queue for runs that failed for good.",
    ))  # fmt: skip
    max_deliveries: int = field(default=5, metadata=_about(
        read_count, "whole number",
        "A message that killed its workers this many times becomes a dead letter.",
    ))  # fmt: skip
    http: str | None = field(default=None, metadata=_about(
        read_address, "host:port", "Address for metrics and health; port 0 takes any free one.",
    ))  # fmt: skip
    stuck_after: timedelta = field(default=timedelta(minutes=2), metadata=_seconds(
        "A beat whose tick does not end, or a worker whose consumer does not come round, for this long "
        "is not alive for /livez.",
    ))  # fmt: skip
    log_format: Literal["text", "json"] = field(default="text", metadata=_about(
        one_of("text", "json"), "text or json", "How the log of a worker and of a beat is written.",
    ))  # fmt: skip
    log_repeats: int = field(default=100, metadata=_about(
        read_count, "whole number", "At most so many log lines of one event a minute.",
    ))  # fmt: skip
    tracing: bool = field(default=False, metadata=_about(
        read_flag, "True or False", "Spans of OpenTelemetry for claim, publish and run.",
    ))  # fmt: skip
    alert_on: tuple[str, ...] = field(default=BY_DEFAULT, metadata=_about(
        read_alerts, "list of names", f"What people are told of: any of {', '.join(ALERTS)}.",
    ))  # fmt: skip
    alert_webhook: str | None = field(default=None, metadata=_about(
        read_webhook, "URL, or env:NAME", "Where alerts are posted as JSON.", is_secret=True,
    ))  # fmt: skip
    alert_format: Literal["plain", "slack", "pagerduty"] = field(default="plain", metadata=_about(
        one_of("plain", "slack", "pagerduty"), "plain, slack or pagerduty", "What is posted there.",
    ))  # fmt: skip
    alert_key: str | None = field(default=None, metadata=_about(
        read_secret, "text, or env:NAME", "The routing key of PagerDuty.", is_secret=True,
    ))  # fmt: skip
    alert_smtp_url: str | None = field(default=None, metadata=_about(
        read_smtp_url, "URL, or env:NAME", "The mail server, smtp:// or smtps://.", is_secret=True,
    ))  # fmt: skip
    alert_email: tuple[str, ...] = field(default=(), metadata=_about(
        read_addresses, "address, or a list of them", "Who gets alerts by mail.",
    ))  # fmt: skip
    alert_email_from: str | None = field(default=None, metadata=_about(
        read_mail_address, "address", "Whom mails come from.", "the first of singleton_alert_email",
    ))  # fmt: skip

    @classmethod
    def from_app(cls, app: Any) -> Settings:
        """Read the config of a Celery app, which is loaded by this if it was not yet."""
        conf = app.conf.finalize()
        found: dict[str, tuple[str, Any]] = {}
        # Not by iterating over conf: there a key with and one without the namespace are two, and the
        # weaker one may come last.
        for mapping in reversed(conf.maps):
            for name, key in spellings(mapping, conf.prefix).items():
                found[name] = (key, mapping[key])
        return cls.from_mapping(
            dict(found.values()),
            broker_url=conf.broker_url,
            broker_transport_options=conf.broker_transport_options,
            broker_use_ssl=conf.broker_use_ssl,
            namespace=conf.prefix,
        )

    @classmethod
    def from_mapping(
        cls,
        mapping: Mapping[str, Any],
        *,
        broker_url: str | Sequence[str] | None = None,
        broker_transport_options: Mapping[str, Any] | None = None,
        broker_use_ssl: object = None,
        namespace: str | None = None,
    ) -> Settings:
        """Pick our settings out of `mapping`, in any case, with or without the namespace.

        The broker's own settings give defaults and bounds.
        """
        given = {name: (key, mapping[key]) for name, key in spellings(mapping, namespace).items()}
        refuse_unknown_names(given)
        values: dict[str, Any] = {}
        for each in fields(cls):
            _, value = given.get(PREFIX + each.name, ("", None))
            if value is not None:
                values[each.name] = each.metadata["read"](PREFIX + each.name, value)
        brokers = split_brokers(broker_url)
        options = broker_transport_options or {}
        if "lock_url" not in values:
            values["lock_url"] = lock_url_of_broker(brokers, options, broker_use_ssl)
        least = 2 * visibility_timeout(brokers, options)
        values.setdefault("remember_for", max(REMEMBER_FOR, least, values.get("lock_ttl", least)))
        if values["remember_for"] < least:
            refuse(
                "singleton_remember_for", values["remember_for"],
                "a message that the broker delivers again would be executed again: raise it to "
                f"{least.total_seconds():g}, twice the visibility timeout, or lower that in "
                "broker_transport_options",
            )  # fmt: skip
        # A run is to be looked after more than once before it could be forgotten.
        values.setdefault("start_within", min(START_WITHIN, values["remember_for"] / 4))
        return cls(**values)

    def __post_init__(self) -> None:
        lock_ttl, least = shown(self.lock_ttl), self.shortest_lock_ttl.total_seconds()
        if self.slot_ttl < SHORTEST_SLOT_TTL:
            refuse("singleton_slot_ttl", self.slot_ttl, "a slow network takes longer: raise it to 0.5")
        if self.slot_ttl > self.lock_ttl:
            to_do = f"lower it to singleton_lock_ttl ({lock_ttl}) or less, or raise that"
            refuse("singleton_slot_ttl", self.slot_ttl, to_do)
        if self.lock_ttl < self.shortest_lock_ttl:
            why = "two renewals would not fit in, and one lost packet would lose the lease"
            to_do = f"raise it to {least:g}, or lower singleton_slot_ttl"
            refuse("singleton_lock_ttl", self.lock_ttl, f"{why}: {to_do}")
        if self.alert_format == "pagerduty" and self.alert_webhook and not self.alert_key:
            refuse("singleton_alert_format", "pagerduty", "it needs singleton_alert_key")
        if bool(self.alert_smtp_url) != bool(self.alert_email):
            to_do = "mail needs both singleton_alert_smtp_url and singleton_alert_email"
            refuse("singleton_alert_email", None, to_do)
        if self.remember_for < self.lock_ttl:
            to_do = f"raise it to singleton_lock_ttl ({lock_ttl}) or more"
            refuse("singleton_remember_for", self.remember_for, to_do)
        if self.start_within is not None and self.start_within > self.remember_for / 2:
            to_do = "raise singleton_remember_for to twice of it, or lower it"
            refuse("singleton_start_within", self.start_within, to_do)

    @property
    def outbox_database(self) -> str | None:
        """Where the outbox is; None: nowhere."""
        return self.outbox_url or self.database_url

    @property
    def store_timeout(self) -> timedelta:
        """How long to wait for the store: a slot's lease must survive a call that fails."""
        return min(timedelta(seconds=1), self.slot_ttl / 3)

    @property
    def shortest_lock_ttl(self) -> timedelta:
        """The least that `lock_ttl` may be, here and in the options of a task.

        Renewals start at a third and at two thirds of the ttl, and the deadline comes a little early
        for drift: the second one must be over by then although the store takes all of its timeout.
        """
        return max(SHORTEST_LOCK_TTL, 4 * self.store_timeout)

    def __repr__(self) -> str:
        values = (f"{each.name}={self._shown(each)}" for each in fields(self))
        return f"Settings({', '.join(values)})"

    def _shown(self, setting: Field[Any]) -> str:
        value = getattr(self, setting.name)
        return HIDDEN if setting.metadata["is_secret"] and value is not None else shown(value)


def describe() -> list[Description]:
    """What the reference page says of each setting, in order."""
    rows = ((each, each.metadata) for each in fields(Settings))
    return [
        Description(PREFIX + each.name, at["kind"], at["default"] or shown(each.default), at["doc"])
        for each, at in rows
    ]


def spellings(mapping: Mapping[str, Any], namespace: str | None) -> dict[str, str]:
    """Our names in `mapping`, each with the key under which it stands there."""
    before = namespace.lower().rstrip("_") + "_" if namespace else ""
    found: dict[str, str] = {}
    for key in filter(lambda key: isinstance(key, str), mapping.keys()):
        name = key.lower().removeprefix(before)
        if not name.startswith(PREFIX):
            continue
        if before and key.isupper() and name == key.lower():
            # Celery does not read it. In Django's settings it may be somebody else's.
            if name.removeprefix(PREFIX) in {each.name for each in fields(Settings)}:
                raise ConfigurationError(f"{key} is not read: name it {before.upper()}{key}")
            continue
        if name in found:
            raise ConfigurationError(f"{key} and {found[name]} are one setting: remove one of them")
        found[name] = key
    return found


_OF_OTHERS: Final[Mapping[str, str]] = {
    # celery-singleton's
    PREFIX + "backend_url": "here it is singleton_lock_url",
    PREFIX + "lock_expiry": "not needed here: locks are renewed, remove it",
    PREFIX + "raise_on_duplicate": "here it is on_duplicate='raise', of a task",
}


def refuse_unknown_names(given: Mapping[str, tuple[str, Any]]) -> None:
    known = [PREFIX + each.name for each in fields(Settings)]
    wrong = []
    for name, (key, value) in given.items():
        # In a config module, `from celery_singleton_lock import singleton_lock` is no setting.
        if name in known or callable(value) or isinstance(value, ModuleType):
            continue
        if name in _OF_OTHERS:
            wrong.append(f"{key} ({_OF_OTHERS[name]})")
            continue
        close = get_close_matches(name, known, n=1)
        meant = [key[: -len(name)] + (each.upper() if key.isupper() else each) for each in close]
        wrong.append(f"{key} (did you mean {meant[0]}?)" if meant else key)
    if wrong:
        # As they are spelt here: with a namespace perhaps, and in capitals.
        key, name = next((key, name) for name, (key, _) in given.items() if name not in known)
        spelt = [key[: -len(name)] + (each.upper() if key.isupper() else each) for each in known]
        raise ConfigurationError(f"unknown settings: {', '.join(wrong)}. Known: {', '.join(spelt)}")
