"""`SingletonScheduler`: Celery beat, on any number of replicas, all of them active."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final

from celery.beat import ScheduleEntry, Scheduler

from celery_singleton_lock.core.redaction import redact_all
from celery_singleton_lock.core.signals import slot_missed
from celery_singleton_lock.leases import open_store
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.settings.values import one_of, read_duration

from .engine import Engine
from .entries import Due, PlannedEntry
from .plan import CatchUp, CatchUpRule, entry_key
from .publisher import Publisher
from .slots import grid_of

logger = logging.getLogger(__name__)

LATE_AT_LEAST: Final = timedelta(seconds=15)
_AFTER_A_BUG: Final = 1.0


class SingletonEntry(ScheduleEntry):  # type: ignore[misc]
    """A line of ``beat_schedule``. It may say how it is caught up: `catch_up`, `catch_up_window`."""

    def __init__(
        self,
        *args: Any,
        catch_up: CatchUp | None = None,
        catch_up_window: float | timedelta | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        where = f"beat_schedule[{self.name!r}]"
        if catch_up is not None:
            one_of("none", "latest", "all")(f"{where}['catch_up']", catch_up)
        self.catch_up = catch_up
        self.catch_up_window = (
            None
            if catch_up_window is None
            else read_duration(f"{where}['catch_up_window']", catch_up_window)
        )

    def rule(self, settings: Settings) -> CatchUpRule:
        return CatchUpRule(
            policy=self.catch_up or settings.catch_up,
            window=self.catch_up_window or settings.catch_up_window,
            late_line=max(3 * settings.slot_ttl, LATE_AT_LEAST),
        )


class SingletonScheduler(Scheduler):  # type: ignore[misc]
    """Set ``beat_scheduler = "celery_singleton_lock:SingletonScheduler"`` and start as many beats as
    you like. The state is in the lease store: a schedule file (``-s``) may be given and is ignored.
    """

    Entry = SingletonEntry

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        self._engine: Engine | None = None
        self._publisher: Publisher | None = None
        self._settings = Settings.from_app(app)
        super().__init__(app, *args, lazy=lazy, **kwargs)
        # Nothing is ever to be written to a file, so nothing is ever to be synchronised.
        self.sync_every = float("inf")

    def tick(self, *_: Any, **__: Any) -> float:
        """Do all that is due; return the seconds until the next tick. Never raises: an exception from
        here would end the beat."""
        try:
            return min(self._running_engine().tick(), float(self.max_interval))
        except Exception:
            logger.exception("beat_tick_failed")
            return _AFTER_A_BUG

    def close(self) -> None:
        """Hand over at once. Called twice by Celery, first from a signal handler."""
        engine, self._engine = self._engine, None
        publisher, self._publisher = self._publisher, None
        if engine is not None:
            engine.leave()
        if publisher is not None:
            publisher.close()
        super().close()

    @property
    def info(self) -> str:
        """For beat's banner."""
        return f"    . leases -> {redact_all(self._settings.lock_url)}"

    # Changes of the schedule at run time

    def add(self, **kwargs: Any) -> Any:
        entry = super().add(**kwargs)
        self._follow()
        return entry

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        super().update_from_dict(dict_)
        self._follow()

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        super().merge_inplace(b)
        self._follow()

    def _follow(self) -> None:
        if self._engine is not None:
            self._engine.follow(self._planned())

    def _planned(self) -> list[PlannedEntry]:
        return [
            PlannedEntry(
                name,
                entry_key(self.app.main or "", name),
                grid_of(entry.schedule),
                entry.rule(self._settings),
            )
            for name, entry in self.schedule.items()
        ]

    def _running_engine(self) -> Engine:
        if self._engine is None:
            settings = self._settings
            self._publisher = Publisher(
                self.app, self.schedule.__getitem__, on_refused=_telling_why("refused")
            )
            store = open_store(
                settings.lock_url, prefix=settings.key_prefix, timeout=settings.store_timeout
            )
            self._engine = Engine(
                store,
                self._publisher,
                replica=f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}",
                slot_ttl=settings.slot_ttl,
                on_missed=_telling_why("too old"),
            )
            self._engine.follow(self._planned())
        return self._engine


def _telling_why(reason: str) -> Callable[[Due], None]:
    def tell(due: Due) -> None:
        logger.warning(
            "slot_missed entry=%r slot=%s reason=%r", due.entry, due.slot.isoformat(), reason
        )
        slot_missed.send(entry=due.entry, slot=due.slot, reason=reason)

    return tell
