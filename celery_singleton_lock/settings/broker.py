"""What the broker's settings mean for ours: where leases are kept, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NoReturn
from urllib.parse import quote

from celery_singleton_lock.core.errors import ConfigurationError

from .urls import scheme_of
from .values import read_duration, shown

# kombu's defaults in seconds, for brokers that deliver again after a time.
VISIBILITY_TIMEOUTS: Final = dict.fromkeys(("redis", "rediss", "redis+socket", "sentinel"), 3600) | (
    dict.fromkeys(("sqs", "slmq", "pgmq"), 1800)
)


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
    broker = shown(";".join(brokers) or None)
    raise ConfigurationError(
        f"singleton_lock_url is not set, and cannot be taken from the broker ({broker}): {reason}. Set "
        f"it, for example singleton_lock_url = {example!r}"
    )
