"""What the URLs of a store and of a database may be. Nothing here connects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from .values import refuse

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


def read_lock_url(name: str, value: object) -> str | tuple[str, ...]:
    urls = (value,) if isinstance(value, str) else value
    if not isinstance(urls, list | tuple) or not urls or not all(isinstance(u, str) for u in urls):
        refuse(name, value, "give a URL, or a list of three or more Redis URLs (Redlock)")
    for url in urls:
        check_store_url(name, url)
    if len(urls) > 1:
        check_quorum(name, urls)
    return urls[0] if len(urls) == 1 else tuple(urls)


def check_store_url(name: str, url: str) -> None:
    scheme = scheme_of(url)
    if re.search(r"[;,]\s*[A-Za-z+]+://", url):
        refuse(name, url, "these are several: give a list, or sentinel://host;host/mymaster")
    if scheme.partition("+")[0] in DATABASES:
        read_database_url(name, url)
    elif scheme not in STORES:
        known = ", ".join(f"{each}://" for each in (*STORES, *DATABASES))
        refuse(name, url, f"begin it with one of {known}")
    elif scheme in NODES:
        server_of(name, url)


def check_quorum(name: str, urls: Sequence[str]) -> None:
    if len(urls) == 2:
        reason = "a majority of two is two, so losing either stops everything"
        refuse(name, urls, f"{reason}: give one URL, or three or more")
    if not all(scheme_of(url) in NODES for url in urls):
        refuse(name, urls, "a quorum needs redis://, rediss:// or unix:// URLs, and nothing else")
    if len({server_of(name, url) for url in urls}) < len(urls):
        refuse(name, urls, "one server has two votes: name independent servers, each once")


def server_of(name: str, url: str) -> tuple[str, int]:
    """What fails as one, whatever the login and the number of the database."""
    try:
        parts = urlsplit(url)
        server = (parts.hostname or "localhost", parts.port or 6379)
    except ValueError:
        refuse(name, url, "cannot be parsed: percent-encode the password (urllib.parse.quote)")
    return (parts.path, 0) if parts.scheme == "unix" else server


def scheme_of(url: str) -> str:
    scheme, separator, _ = url.partition("://")
    return scheme.lower() if separator else ""


def is_sql(url: str | Sequence[str]) -> bool:
    """Whether leases at this URL are in a SQL database."""
    return isinstance(url, str) and scheme_of(url).partition("+")[0] in DATABASES


def read_database_url(name: str, value: object) -> str:
    """Refuses what SQLAlchemy could not open. Connects to nothing."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    if not isinstance(value, str):
        refuse(name, value, "give the URL as a text")
    try:
        url = make_url(value)
        backend, driver, dialect = url.get_backend_name(), url.get_driver_name(), url.get_dialect()
        example = DATABASES[backend]
    except (ArgumentError, ValueError, KeyError):
        refuse(name, value, f"write it like {' or '.join(DATABASES.values())}")
    if dialect.is_async:
        refuse(name, value, f"its driver {driver} is asynchronous: write it like {example}")
    try:
        dialect.import_dbapi()
    except ImportError:
        extra = f"pip install 'celery-singleton-lock[{EXTRAS.get(backend, '')}]'".replace("[]", "")
        refuse(name, value, f"its driver {driver} is missing: {extra}, and write it like {example}")
    if backend == "sqlite" and url.database in (None, "", ":memory:"):
        refuse(name, value, f"processes do not share SQLite in memory: write it like {example}")
    return value
