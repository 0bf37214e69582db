"""`ChangeStream`: pending changes, in shards, each drained by one holder of a lease at a time."""

from __future__ import annotations

import logging
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from celery_singleton_lock.core.errors import ConfigurationError, LockNotAcquired
from celery_singleton_lock.core.models import Lease, check_name
from celery_singleton_lock.worker.lock import SingletonLock
from celery_singleton_lock.worker.parts import App, parts_of

logger = logging.getLogger(__name__)

DEFAULT_SHARDS: Final = 8
MOST_SHARDS: Final = 1024
_LOOK_EVERY_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Batch:
    """Some changes of one shard, oldest first."""

    changes: Sequence[Any]
    """Rows of the table, or entries of the Redis stream."""
    connection: Any
    """The transaction in which the changes are marked as processed; None with Redis."""
    lease: Lease

    @property
    def fence(self) -> int:
        """Give it to whatever else you write to: one with an older fence is stale."""
        return self.lease.fence

    def ensure_held(self) -> None:
        """Raise `LeaseLost` if somebody else may be at this shard by now."""
        self.lease.ensure_held()


Handler = Callable[[Batch], object]


class Changes(ABC):
    """Where the changes are, and how many shards there are. Made for a stream by `open`."""

    def open(self, name: str, prefix: str, shards: int) -> None:
        """Called once, before anything else. No I/O. `shards` if nothing is recorded yet."""
        self.name = name
        self.prefix = prefix
        self.first_shards = shards

    @abstractmethod
    def shards(self) -> int:
        """How many there are to be drained now, as it is recorded."""

    @abstractmethod
    def process(self, shard: int, lease: Lease, handle: Handler, most: int) -> int:
        """Handle up to `most` pending changes of a shard, and mark them as processed; return how many.
        Raises `LeaseLost` if there was a holder with a larger fence."""

    @abstractmethod
    def change_shards(self, shards: int, leases: Sequence[Lease]) -> None:
        """From now on there are so many; `leases` are those of all shards, old and new."""

    @abstractmethod
    def pending(self) -> int:
        """How many changes are not processed."""

    @property
    def is_changing(self) -> bool:
        """Whether changes of the old shards are left, which are drained before the new ones."""
        return False


class ChangeStream:
    """Call `drain` from a task, one for each shard: see `sharded`. Making one does no I/O."""

    def __init__(
        self,
        name: str,
        changes: Changes,
        *,
        app: App,
        shards: int = DEFAULT_SHARDS,
        batch: int = 100,
    ) -> None:
        """`shards` counts the first time only: later it is changed by `change_shards`."""
        check_name("name", name)
        _check_shards(shards)
        if batch < 1:
            raise ConfigurationError(f"batch={batch}: give a whole number, 1 or more")
        self.name: Final = name
        self._changes = changes
        self._app = app
        self._batch = batch
        changes.open(name, parts_of(app).settings.key_prefix, shards)
        _remember(app, self)

    def drain(self, handle: Handler, *, shard: int = 0, shards: int = 1, seconds: float = 60.0) -> int:
        """Handle what is pending, a batch at a time; return how many changes.

        `shard` of `shards` says which part of the work to do: these need not be as many as the stream
        has. What somebody else is at is passed over. Ends after `seconds`, at the end of a batch, if
        there is no end of changes. What `handle` raises is raised: its batch stays pending.
        """
        if not 0 <= shard < shards:
            raise ConfigurationError(f"shard={shard} of shards={shards}: count from 0")
        give_up_at = time.monotonic() + seconds
        own = (each for each in range(self._changes.shards()) if each % shards == shard)
        return sum(self._drain_shard(each, handle, give_up_at) for each in own)

    @property
    def shards(self) -> int:
        return self._changes.shards()

    @property
    def pending(self) -> int:
        return self._changes.pending()

    @property
    def is_changing(self) -> bool:
        return self._changes.is_changing

    def wait_until_changed(self, seconds: float) -> bool:
        """Until the changes of the old shards are drained; False if they are not by then."""
        give_up_at = time.monotonic() + seconds
        while self.is_changing:
            if time.monotonic() > give_up_at:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True

    def change_shards(self, shards: int, *, wait: float = 60.0) -> None:
        """Have so many from now on. Waits until nobody is at any shard, keeps all others out meanwhile,
        and leaves no change out: whatever calls `drain`, with whatever number, goes on with the new
        one. Raises `LockNotAcquired` after `wait` seconds; then nothing was changed."""
        _check_shards(shards)
        before = self._changes.shards()
        with ExitStack() as stack:
            leases = [
                stack.enter_context(self._lock(each, wait)) for each in range(max(before, shards))
            ]
            self._changes.change_shards(shards, leases)
        logger.warning("stream_shards_changed stream=%r before=%d now=%d", self.name, before, shards)

    def _drain_shard(self, shard: int, handle: Handler, give_up_at: float) -> int:
        done = 0
        try:
            with self._lock(shard, wait=0) as lease:
                while time.monotonic() < give_up_at:
                    lease.ensure_held()
                    count = self._changes.process(shard, lease, handle, self._batch)
                    done += count
                    if not count:
                        break
        except LockNotAcquired:
            logger.debug("stream_shard_held stream=%r shard=%d", self.name, shard)
        return done

    def _lock(self, shard: int, wait: float) -> SingletonLock:
        key = f"stream:{self.name}:{shard}"
        return SingletonLock(key, lambda: parts_of(self._app), wait=wait)


_streams: Final[weakref.WeakKeyDictionary[App, dict[str, ChangeStream]]] = weakref.WeakKeyDictionary()


def streams_of(app: App) -> dict[str, ChangeStream]:
    """Those that were made for this app in this process, by name."""
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    return dict(_streams.get(app, {}))


def _remember(app: App, stream: ChangeStream) -> None:
    app = app._get_current_object() if hasattr(app, "_get_current_object") else app
    _streams.setdefault(app, {})[stream.name] = stream


def _check_shards(shards: object) -> None:
    if isinstance(shards, bool) or not isinstance(shards, int) or not 1 <= shards <= MOST_SHARDS:
        raise ConfigurationError(f"shards={shards!r}: give a whole number from 1 to {MOST_SHARDS}")
