"""From a list of URLs to a quorum."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta

from redis.connection import ConnectionPool

from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.leases.redis.links import Connection
from celery_singleton_lock.leases.redis.opening import open_pool

from .incarnation import quorum_key
from .node import Node
from .store import RedlockLeaseStore

FEWEST = 3


def open_redlock_store(urls: Sequence[str], *, prefix: str, timeout: timedelta) -> RedlockLeaseStore:
    if len(urls) < FEWEST:
        raise ConfigurationError(
            f"{len(urls)} lock URLs are given: a majority of two is both, so losing either stops "
            "everything. Give one URL, or three or more (Redlock)"
        )
    # A node that is away must cost far less than a lease lasts.
    patience = timeout / 4
    nodes = [
        Node(
            number,
            redact(url),
            functools.partial(_connect, open_pool(url, patience)),
            quorum_key(prefix),
        )
        for number, url in enumerate(urls)
    ]
    return RedlockLeaseStore(nodes, prefix=prefix, timeout=patience)


def _connect(pool: ConnectionPool) -> Connection:
    # Not lent by the pool, which would connect it again by itself: see channel.py.
    return pool.make_connection()
