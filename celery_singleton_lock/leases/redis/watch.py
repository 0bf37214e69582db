"""Being woken when a lease is let go, by publish and subscribe."""

from __future__ import annotations

from datetime import timedelta

from redis.exceptions import RedisError

from celery_singleton_lock.leases.base import PollingWatch

from .links import Link, PubSub
from .names import Names


class ReleaseWatch:
    """Falls back to polling when the channel cannot be had: being woken only saves time."""

    LONGEST = timedelta(seconds=5)
    """A message can be lost with its connection: look anyway after this."""

    def __init__(self, link: Link, channel: bytes) -> None:
        self._polling = PollingWatch()
        self._pubsub: PubSub | None = None
        try:
            self._pubsub = link.pubsub()
            self._pubsub.subscribe(channel)
            # Until the server confirmed, a release could pass unheard.
            self._pubsub.get_message(timeout=1.0)
        except (RedisError, OSError):
            self.close()

    def wait(self, timeout: timedelta) -> bool:
        if self._pubsub is None:
            return self._polling.wait(timeout)
        try:
            patience = min(timeout, self.LONGEST).total_seconds()
            return self._pubsub.get_message(timeout=max(0.0, patience)) is not None
        except (RedisError, OSError):
            self.close()
            return False

    def close(self) -> None:
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            pubsub.close()


class AllReleases:
    """Raises redis-py's own errors."""

    def __init__(self, link: Link, names: Names) -> None:
        self._names = names
        self._pubsub = link.pubsub()
        self._pubsub.psubscribe(names.channels())
        self._pubsub.get_message(timeout=1.0)  # the server has confirmed it

    def next(self, timeout: timedelta) -> str | None:
        told = self._pubsub.get_message(timeout=timeout.total_seconds())
        return None if told is None else self._names.key_of_channel(told["channel"])

    def close(self) -> None:
        self._pubsub.close()
