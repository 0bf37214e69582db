"""From a URL to a lease store."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from celery_singleton_lock.core.clock import DRIFT
from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import redact

from .base import DEFAULT_PREFIX, DEFAULT_TIMEOUT, LeaseStore

REDIS_SCHEMES: Final = frozenset(
    {
        "redis",
        "rediss",
        "unix",
        "redis+socket",
        "sentinel",
        "sentinels",
        "redis+cluster",
        "rediss+cluster",
    }
)
NODE_SCHEMES: Final = frozenset({"redis", "rediss", "unix", "redis+socket"})
SQL_SCHEMES: Final = frozenset({"sqlite", "postgresql", "mysql", "mariadb"})
EXAMPLES: Final = (
    "redis://host:6379/0, rediss://..., unix:///path, sentinel://h1:26379;h2:26379/mymaster, "
    "redis+cluster://host:6379, postgresql+psycopg://..., mysql+pymysql://..., sqlite:////path, "
    "memory://"
)


def open_store(
    url_or_urls: str | Sequence[str],
    *,
    prefix: str = DEFAULT_PREFIX,
    timeout: timedelta = DEFAULT_TIMEOUT,
    drift: float = DRIFT,
) -> LeaseStore:
    """Open the lease store behind a URL, or over several servers. Connects when it is first used, and
    again when it must.

    `prefix` keeps applications apart that share a server. `timeout` bounds every wait for the network;
    keep it well below the shortest ttl you will ask for. `drift` is the part of a ttl by which clocks
    may drift apart: see `LeaseStore.allow_drift`.
    """
    store = _open(url_or_urls, prefix, timeout)
    store.allow_drift(drift)
    return store


def _open(url_or_urls: str | Sequence[str], prefix: str, timeout: timedelta) -> LeaseStore:
    if timeout <= timedelta(0):
        raise ConfigurationError(f"timeout {timeout} must be positive")
    if not prefix or "\0" in prefix:
        raise ConfigurationError("the prefix of a store's keys must not be empty, nor contain a NUL")
    if not isinstance(url_or_urls, str):
        if len(url_or_urls) == 1:
            return _open(url_or_urls[0], prefix, timeout)
        return _open_quorum(url_or_urls, prefix=prefix, timeout=timeout)
    scheme = scheme_of(url_or_urls)
    if scheme in REDIS_SCHEMES:
        from .redis.opening import open_redis_store

        return open_redis_store(url_or_urls, prefix=prefix, timeout=timeout)
    if scheme.partition("+")[0] in SQL_SCHEMES:
        from .sql import SqlLeaseStore

        return SqlLeaseStore(url_or_urls, prefix=prefix, timeout=timeout)
    if scheme == "memory":
        from .memory import MemoryLeaseStore

        return MemoryLeaseStore()
    raise ConfigurationError(
        f"no lease store for {redact(url_or_urls)!r}: the URL must be one of {EXAMPLES}"
    )


def _open_quorum(urls: Sequence[str], *, prefix: str, timeout: timedelta) -> LeaseStore:
    for url in urls:
        if scheme_of(url) not in NODE_SCHEMES:
            raise ConfigurationError(
                f"{redact(url)!r} cannot be a node of a quorum (Redlock): give redis://, rediss:// or "
                "unix:// URLs of independent servers"
            )
    from .redlock.opening import open_redlock_store

    return open_redlock_store(urls, prefix=prefix, timeout=timeout)


def scheme_of(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""
