"""From a URL to the connections of a Redis store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from redis import RedisCluster
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode
from redis.connection import ConnectionPool, parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel, SentinelConnectionPool

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import redact

from .cluster import ClusterLink
from .links import Link, OnServer, PoolLink, ServerFacts, log_in
from .store import RedisLeaseStore

# Celery's own Redis URLs spell these as in the ssl module; redis-py does not know them.
_CERT_REQS: Final = {
    "CERT_REQUIRED": "required",
    "CERT_OPTIONAL": "optional",
    "CERT_NONE": "none",
}
_SENTINEL_PORT: Final = 26379
_REDIS_PORT: Final = 6379


def open_redis_store(url: str, *, prefix: str, timeout: timedelta) -> RedisLeaseStore:
    scheme = url.partition("://")[0].lower()
    opener = {
        "sentinel": _open_sentinel,
        "sentinels": _open_sentinel,
        "redis+cluster": _open_cluster,
        "rediss+cluster": _open_cluster,
    }.get(scheme, _open_single)
    options = _options(timeout)
    # Parse now, connect later: a URL that cannot work is refused at once.
    with _refusing(url):
        opener(url, options, _nobody)
    return RedisLeaseStore(
        redact(url), lambda on_server: opener(url, options, on_server), prefix=prefix
    )


def open_pool(url: str, timeout: timedelta) -> ConnectionPool:
    """The connections to one server, none of them made yet."""
    with _refusing(url):
        return _pool(url, _options(timeout))


def _options(timeout: timedelta) -> dict[str, Any]:
    return {
        "socket_timeout": timeout.total_seconds(),
        "socket_connect_timeout": timeout.total_seconds(),
        "socket_keepalive": True,
        # Ours is the only retry: with theirs, a call would outlive its timeout.
        "retry": Retry(NoBackoff(), 0),
        # Push messages of RESP3 are of no use here, and cost a handshake.
        "protocol": 2,
        "redis_connect_func": log_in,
    }


@contextmanager
def _refusing(url: str) -> Iterator[None]:
    try:
        yield
    except ConfigurationError:
        raise
    except (ValueError, TypeError):
        # Without the parser's own words, which may quote the password.
        raise ConfigurationError(
            f"Redis URL {redact(url)!r} cannot be used: percent-encode what is not plain in its user, "
            "password and path, give the port as a number, and look at its parameters"
        ) from None


def _nobody(shard: int, server: ServerFacts) -> None:
    """Stands for a store while a URL is only tried."""


def _open_single(url: str, options: dict[str, Any], on_server: OnServer) -> Link:
    return PoolLink(_pool(url, options), on_server)


def _pool(url: str, options: dict[str, Any]) -> ConnectionPool:
    if url.lower().startswith("redis+socket:"):
        url = "unix:" + url.partition(":")[2].replace("virtual_host=", "db=")
    if url.lower().startswith("unix:"):
        options = {key: value for key, value in options.items() if key != "socket_keepalive"}
    # Every thread of a busy worker may need one: no limit, as their number is the limit.
    return _tried(ConnectionPool.from_url(_in_their_words(url), max_connections=2**31, **options))


def _tried(pool: ConnectionPool) -> ConnectionPool:
    """A parameter that redis-py does not know is refused by its connections, and not before."""
    pool.make_connection()
    return pool


def _open_sentinel(url: str, options: dict[str, Any], on_server: OnServer) -> Link:
    """``sentinel://[[user]:password@]host[:port];host[:port].../master[/db]``"""
    parts, hosts, settings = _split_hosts(url, separator=";", default_port=_SENTINEL_PORT)
    master, _, db = parts.path.strip("/").partition("/")
    if not master:
        raise ConfigurationError(
            f"Sentinel URL {redact(url)!r} does not name its master: end it with /mymaster"
        )
    sentinel_password = settings.pop("sentinel_password", None)
    if parts.scheme == "sentinels":
        settings["ssl"] = True
    options = options | _login(parts.netloc) | settings | {"db": int(db or 0)}
    sentinels = Sentinel(
        hosts,
        sentinel_kwargs={
            "socket_timeout": options["socket_timeout"],
            "socket_connect_timeout": options["socket_connect_timeout"],
            "password": sentinel_password,
            "retry": options["retry"],
            # Servers that are to be reached by TLS are not asked for in the clear.
            **{name: value for name, value in settings.items() if name.startswith("ssl")},
        },
    )
    pool = SentinelConnectionPool(unquote(master), sentinels, max_connections=2**31, **options)
    return PoolLink(_tried(pool), on_server)


def _open_cluster(url: str, options: dict[str, Any], on_server: OnServer) -> Link:
    """``redis+cluster://[[user]:password@]host[:port],host[:port]...``"""
    parts, hosts, settings = _split_hosts(url, separator=",", default_port=_REDIS_PORT)
    if parts.path.strip("/") not in ("", "0"):
        raise ConfigurationError(
            f"Cluster URL {redact(url)!r} names a database, but a cluster has only database 0"
        )
    options = options | _login(parts.netloc) | settings
    options["max_connections"] = 2**31
    if parts.scheme == "rediss+cluster":
        options["ssl"] = True

    def connect() -> RedisCluster:
        nodes = [ClusterNode(host, port) for host, port in hosts]
        return RedisCluster(startup_nodes=nodes, **options)

    return ClusterLink(connect, on_server)


class _Parts(NamedTuple):
    scheme: str
    netloc: str
    path: str
    query: str


def _split(url: str) -> _Parts:
    """Not by `urlsplit`, which does not expect several hosts, and takes one of IPv6 among them for an
    error in some versions of Python."""
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, _, path = place.partition("/")
    return _Parts(scheme.lower(), netloc, path, query)


def _split_hosts(
    url: str, *, separator: str, default_port: int
) -> tuple[_Parts, list[tuple[str, int]], dict[str, Any]]:
    parts = _split(url)
    listed = parts.netloc.rpartition("@")[2].split(separator)
    hosts = [_host_and_port(host, default_port) for host in listed if host]
    if not hosts:
        raise ConfigurationError(f"Redis URL {redact(url)!r} names no host")
    # redis-py knows the types of the options of a URL: let it read them.
    settings = parse_url(_in_their_words(f"redis://host?{parts.query}"))
    settings.pop("host", None)
    return parts, hosts, settings


def _host_and_port(text: str, default_port: int) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or text.endswith("]"):
        host, port = text, str(default_port)
    return host.strip("[]"), int(port)


def _login(netloc: str) -> dict[str, str]:
    login, at, _ = netloc.rpartition("@")
    user, _, password = login.partition(":")
    if not at:
        return {}
    found = {"username": unquote(user), "password": unquote(password)}
    return {name: value for name, value in found.items() if value}


def _in_their_words(url: str) -> str:
    for ours, theirs in _CERT_REQS.items():
        url = url.replace(f"ssl_cert_reqs={ours}", f"ssl_cert_reqs={theirs}")
    return url
