"""Every ``singleton_*`` setting: what it means, what it may be, and what it is when it is not set.

Read once, from the Celery config. What cannot work is refused here, before anything is touched, by an
error that names the setting and says what to do; no error and no repr contains a password.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import partial
from types import ModuleType
from typing import Any, Final, Literal, NamedTuple, NoReturn
from urllib.parse import quote, urlsplit

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import HIDDEN, redact, starts_as_url

PREFIX: Final = "singleton_"
LONGEST: Final = timedelta(days=3650)
SHORTEST_LOCK_TTL: Final = timedelta(seconds=1)
SHORTEST_SLOT_TTL: Final = timedelta(seconds=0.5)
REMEMBER_FOR: Final = timedelta(hours=2)
# kombu's defaults in seconds, for brokers that deliver again after a time.
VISIBILITY_TIMEOUTS: Final = dict.fromkeys(("redis", "rediss", "redis+socket", "sentinel"), 3600) | (
    dict.fromkeys(("sqs", "slmq", "pgmq"), 1800)
)
NODES: Final = ("redis", "rediss", "unix")
STORES: Final = (
    *NODES, "redis+socket", "sentinel", "sentinels", "redis+cluster", "rediss+cluster", "memory",
)  # fmt: skip
DATABASES: Final = {
    "sqlite": "sqlite:////path/to/file",
    "postgresql": "postgresql+psycopg://user:password@host/database",
    "mysql": "mysql+pymysql://user:password@host/database",
    "mariadb": "mariadb+pymysql://user:password@host/database",
}
EXTRAS: Final = {"postgresql": "postgres", "mysql": "mysql", "mariadb": "mysql"}


def _refuse(name: str, value: object, what_to_do: str) -> NoReturn:
    # Without a cause or a context: the errors of parsers quote what they could not parse.
    raise ConfigurationError(f"{name} = {_shown(value)}: {what_to_do}") from None


def _shown(value: object) -> str:
    match value:
        case None | bool() | int() | float():
            return repr(value)
        case timedelta():
            return f"{value.total_seconds():g} s"
        case str():
            return repr(redact(value) if starts_as_url(value) or "@" not in value else HIDDEN)
        case list() | tuple():
            return f"[{', '.join(map(_shown, value))}]"
    return f"<{type(value).__name__}>"


# What each kind of value may be.


def read_duration(name: str, value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        _refuse(name, value, "give seconds as a number, or a timedelta")
    try:
        duration = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (ValueError, OverflowError):  # not a number, infinity
        duration = timedelta(0)
    if not timedelta(0) < duration <= LONGEST:
        _refuse(name, value, "give seconds above 0, and at most ten years")
    return duration


def read_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        _refuse(name, value, "give a whole number, 1 or more")
    return value


def read_name(name: str, value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        _refuse(name, value, "give a text that is not empty and contains no NUL")
    if len(value.encode(errors="replace")) > 255:  # RabbitMQ's limit for the name of a queue
        _refuse(name, value, "give a text of at most 255 bytes")
    return value


def read_address(name: str, value: object) -> str:
    address = re.fullmatch(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", str(value))
    if not isinstance(value, str) or address is None or int(address[1]) > 65535:
        _refuse(name, value, "write it as host:port, for example '127.0.0.1:9808'")
    return value


def one_of(*choices: str) -> Callable[[str, object], str]:
    def read_choice(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            _refuse(name, value, f"choose one of {', '.join(map(repr, choices))}")
        return value

    return read_choice


def read_lock_url(name: str, value: object) -> str | tuple[str, ...]:
    urls = (value,) if isinstance(value, str) else value
    if not isinstance(urls, list | tuple) or not urls or not all(isinstance(u, str) for u in urls):
        _refuse(name, value, "give a URL, or a list of three or more Redis URLs (Redlock)")
    for url in urls:
        check_store_url(name, url)
    if len(urls) > 1:
        check_quorum(name, urls)
    return urls[0] if len(urls) == 1 else tuple(urls)


def check_store_url(name: str, url: str) -> None:
    scheme = scheme_of(url)
    if re.search(r"[;,]\s*[A-Za-z+]+://", url):
        _refuse(name, url, "these are several: give a list, or sentinel://host;host/mymaster")
    if scheme.partition("+")[0] in DATABASES:
        read_database_url(name, url)
    elif scheme not in STORES:
        known = ", ".join(f"{each}://" for each in (*STORES, *DATABASES))
        _refuse(name, url, f"begin it with one of {known}")
    elif scheme in NODES:
        server_of(name, url)


def check_quorum(name: str, urls: Sequence[str]) -> None:
    if len(urls) == 2:
        reason = "a majority of two is two, so losing either stops everything"
        _refuse(name, urls, f"{reason}: give one URL, or three or more")
    if not all(scheme_of(url) in NODES for url in urls):
        _refuse(name, urls, "a quorum needs redis://, rediss:// or unix:// URLs, and nothing else")
    if len({server_of(name, url) for url in urls}) < len(urls):
        _refuse(name, urls, "one server has two votes: name independent servers, each once")


def server_of(name: str, url: str) -> tuple[str, int]:
    """What fails as one, whatever the login and the number of the database."""
    try:
        parts = urlsplit(url)
        server = (parts.hostname or "localhost", parts.port or 6379)
    except ValueError:
        _refuse(name, url, "cannot be parsed: percent-encode the password (urllib.parse.quote)")
    return (parts.path, 0) if parts.scheme == "unix" else server


def scheme_of(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def read_database_url(name: str, value: object) -> str:
    """Refuses what SQLAlchemy could not open. Connects to nothing."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if not isinstance(value, str):
        _refuse(name, value, "give the URL as a text")
    try:
        url = make_url(value)
        backend, driver, dialect = url.get_backend_name(), url.get_driver_name(), url.get_dialect()
        example = DATABASES[backend]
    except (ArgumentError, ValueError, KeyError):
        _refuse(name, value, f"write it like {' or '.join(DATABASES.values())}")
    if dialect.is_async:
        _refuse(name, value, f"its driver {driver} is asynchronous: write it like {example}")
    try:
        dialect.import_dbapi()
    except ImportError:
        extra = f"pip install 'celery-singleton-lock[{EXTRAS.get(backend, '')}]'".replace("[]", "")
        _refuse(name, value, f"its driver {driver} is missing: {extra}, and write it like {example}")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        _refuse(name, value, f"processes do not share SQLite in memory: write it like {example}")
    return value


# The settings.


class Description(NamedTuple):
    """One row of the reference page."""

    name: str
    kind: str
    default: str
    doc: str


def _about(
    read: Callable[[str, object], object], kind: str, doc: str, default: str = ""
) -> dict[str, Any]:
    """`default` says what the default is, where it is not a plain value."""
    return {"read": read, "kind": kind, "doc": doc, "default": default}


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
    key_prefix: str = field(default="singleton", metadata=_text(
        "Keeps applications apart that share a store: give each its own.",
    ))  # fmt: skip
    lock_ttl: timedelta = field(default=timedelta(seconds=30), metadata=_seconds(
        "How long a lease outlives the last sign of life of its holder, and so the time until the run "
        "of a killed worker is taken over. At least 1 second and four store timeouts.",
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
            _refuse(
                "singleton_remember_for", values["remember_for"],
                "a message that the broker delivers again would be executed again: raise it to "
                f"{least.total_seconds():g}, twice the visibility timeout, or lower that in "
                "broker_transport_options",
            )  # fmt: skip
        return cls(**values)

    def __post_init__(self) -> None:
        lock_ttl, least = _shown(self.lock_ttl), self.shortest_lock_ttl.total_seconds()
        if self.slot_ttl < SHORTEST_SLOT_TTL:
            _refuse("singleton_slot_ttl", self.slot_ttl, "a slow network takes longer: raise it to 0.5")
        if self.slot_ttl > self.lock_ttl:
            to_do = f"lower it to singleton_lock_ttl ({lock_ttl}) or less, or raise that"
            _refuse("singleton_slot_ttl", self.slot_ttl, to_do)
        if self.lock_ttl < self.shortest_lock_ttl:
            why = "two renewals would not fit in, and one lost packet would lose the lease"
            to_do = f"raise it to {least:g}, or lower singleton_slot_ttl"
            _refuse("singleton_lock_ttl", self.lock_ttl, f"{why}: {to_do}")
        if self.remember_for < self.lock_ttl:
            to_do = f"raise it to singleton_lock_ttl ({lock_ttl}) or more"
            _refuse("singleton_remember_for", self.remember_for, to_do)

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
        shown = (f"{each.name}={_shown(getattr(self, each.name))}" for each in fields(self))
        return f"Settings({', '.join(shown)})"


def describe() -> list[Description]:
    """What the reference page says of each setting, in order."""
    rows = ((each, each.metadata) for each in fields(Settings))
    return [
        Description(PREFIX + each.name, at["kind"], at["default"] or _shown(each.default), at["doc"])
        for each, at in rows
    ]


# Where settings stand in a config, and what the broker's settings mean for ours.


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


def refuse_unknown_names(given: Mapping[str, tuple[str, Any]]) -> None:
    known = [PREFIX + each.name for each in fields(Settings)]
    wrong = []
    for name, (key, value) in given.items():
        # In a config module, `from celery_singleton_lock import singleton_lock` is no setting.
        if name in known or callable(value) or isinstance(value, ModuleType):
            continue
        close = get_close_matches(name, known, n=1)
        meant = [key[: -len(name)] + (each.upper() if key.isupper() else each) for each in close]
        wrong.append(f"{key} (did you mean {meant[0]}?)" if meant else key)
    if wrong:
        raise ConfigurationError(f"unknown settings: {', '.join(wrong)}. Known: {', '.join(known)}")


def split_brokers(broker_url: str | Sequence[str] | None) -> list[str]:
    """As kombu does: a list, or a text with semicolons."""
    joined = broker_url if isinstance(broker_url, str) else ";".join(broker_url or ())
    return [url.strip() for url in joined.split(";") if url.strip()]


def visibility_timeout(brokers: Sequence[str], options: Mapping[str, Any]) -> timedelta:
    """After this time the broker delivers again; zero where that does not depend on time."""
    configured = options.get("visibility_timeout")
    if configured not in (None, ""):
        return read_duration("broker_transport_options['visibility_timeout']", configured)
    return timedelta(seconds=VISIBILITY_TIMEOUTS.get(scheme_of(brokers[0]), 0) if brokers else 0)


def lock_url_of_broker(brokers: Sequence[str], options: Mapping[str, Any], use_ssl: object) -> str:
    scheme = scheme_of(brokers[0]) if brokers else ""
    if scheme == "memory":
        return "memory://"
    if scheme not in ("redis", "rediss", "redis+socket", "sentinel"):
        _refuse_default(brokers, "the broker is not Redis")
    if use_ssl:
        _refuse_default(brokers, "broker_use_ssl is not read here", "rediss://host?ssl_ca_certs=/path")
    if scheme == "sentinel":
        return lock_url_of_sentinels(brokers, options)
    if len(brokers) > 1:
        _refuse_default(brokers, "replicas that use different brokers would not see each other's locks")
    return brokers[0]


def lock_url_of_sentinels(brokers: Sequence[str], options: Mapping[str, Any]) -> str:
    """From kombu's spelling (``sentinel://h1;sentinel://h2/0`` and transport options) to ours."""
    places = [url.rpartition("sentinel://")[2].partition("/") for url in brokers]
    logins = {place.rpartition("@")[0] for place, _, _ in places} - {""}
    hosts = [place.rpartition("@")[2] for place, _, _ in places]
    databases = {path for _, _, path in places} - {""}
    master, secrets = options.get("master_name"), dict(options.get("sentinel_kwargs") or {})
    password = secrets.pop("password", None)
    # Another scheme, or a slash in a password, leaves a path that is no number.
    plain = all(path.isdecimal() for path in databases) and "?" not in "".join(brokers)
    # Of the rest, timeouts are ours to choose; anything else says how to reach the Sentinels.
    simple = (
        len(databases) < 2 and len(logins) < 2 and all(str(n).startswith("socket_") for n in secrets)
    )
    if not (master and plain and simple):
        _refuse_default(
            brokers,
            "that takes a master_name in broker_transport_options, one login, one database, no query, "
            "and no sentinel_kwargs but a password",
            "sentinel://host1:26379;host2:26379/mymaster",
        )
    login = "".join(f"{each}@" for each in logins)
    database = "".join(f"/{each}" for each in databases)
    query = f"?sentinel_password={quote(str(password), safe='')}" if password else ""
    return f"sentinel://{login}{';'.join(hosts)}/{quote(str(master), safe='')}{database}{query}"


def _refuse_default(
    brokers: Sequence[str], reason: str, example: str = "redis://host:6379/0"
) -> NoReturn:
    broker = _shown(";".join(brokers) or None)
    raise ConfigurationError(
        f"singleton_lock_url is not set, and cannot be taken from the broker ({broker}): {reason}. Set "
        f"it, for example singleton_lock_url = {example!r}"
    )
