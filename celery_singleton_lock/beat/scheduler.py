"""`SingletonScheduler`: Celery beat, on any number of replicas, all of them active."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from celery.beat import Scheduler

from celery_singleton_lock.core.facts import RunName, SlotMissed, SlotsPublished
from celery_singleton_lock.core.redaction import redact_all
from celery_singleton_lock.core.signals import slot_missed
from celery_singleton_lock.observability.beat_watch import BeatWatch
from celery_singleton_lock.observability.installing import observe
from celery_singleton_lock.observability.listening import beat_tracing_of, listeners_of, tracing_module
from celery_singleton_lock.observability.measuring import open_measured_store
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.settings.hiding import hide_secrets

from .engine import Engine
from .entries import Due, PlannedEntry
from .entry import SingletonEntry, plan_entry
from .plan import run_id
from .publisher import Publisher
from .roster import Roster
from .start_terms import StartTerms, terms_of

if TYPE_CHECKING:
    from celery_singleton_lock.recovery.outbox.thread import RelayThread

    from .showing import Showing

logger = logging.getLogger(__name__)

_AFTER_A_BUG: Final = 1.0

hide_secrets()


class SingletonSchedulerMixin:
    """Gives any scheduler class of Celery beat as many replicas as you like: put it first among the
    bases. What is due, and who publishes it, is decided here; where the entries come from is the
    other class's affair.

    `schedule` of that class is looked at before every tick. A new mapping is a new schedule. While it
    raises, the last one is kept to.
    """

    app: Any
    schedule: Any
    max_interval: Any

    def __init__(self, app: Any, *args: Any, lazy: bool = False, **kwargs: Any) -> None:
        self._engine: Engine | None = None
        self._publisher: Publisher | None = None
        self._roster: Roster | None = None
        self._relay: RelayThread | None = None
        self._showing: Showing | None = None
        self._is_ticking = False
        self._is_closing = False
        self._cannot_read = False
        self._settings = Settings.from_app(app)
        self._listeners = listeners_of(app)
        self._tracing = beat_tracing_of(app, self._settings)
        self._replica = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        observe(app)
        self._watch = BeatWatch(app, self._settings, self._why_not_ready)
        super().__init__(app, *args, lazy=lazy, **kwargs)  # type: ignore[call-arg]
        if not lazy:
            self._refuse_old_ledger()

    def plan_entry(self, entry: Any) -> PlannedEntry:
        """How an entry of the other class's kind is planned. Override where it knows more than a
        schedule: times to start and to end, say."""
        return plan_entry(entry, self._settings, self.app.main or "")

    def after_publish(self, due: Due) -> None:
        """Called for every slot that was published by this replica, for books of the other class. Keep
        it short: others wait to be published. Errors in it are logged."""

    def tick(self, *_: Any, **__: Any) -> float:
        """Do all that is due; return the seconds until the next tick. Raises SystemExit when beat was
        told to end, and nothing else: that would end it, too."""
        if self._is_closing:
            # Celery's handler has closed us and raised SystemExit, but perhaps where Python drops
            # exceptions, as in a destructor: beat would go on for ever.
            raise SystemExit
        self._is_ticking = True
        self._watch.tick_begins()
        wait = _AFTER_A_BUG
        try:
            wait = min(self._running_engine().tick(), float(self.max_interval))
        except Exception:
            logger.exception("beat_tick_failed")
        finally:
            self._is_ticking = False
        self._watch.tick_ended(wait)
        return wait

    def close(self) -> None:
        """Hand over at once. Called twice by Celery: first from a signal handler, which then raises
        SystemExit, and again on the way out."""
        self._is_closing = True
        if self._is_ticking:
            # The handler has interrupted a tick, whose connections are in use: on the way out, then.
            return
        try:
            self._close()
        except Exception:
            # From the handler it would be logged nowhere, and keep that from raising.
            logger.exception("beat_not_closed")
        super().close()  # type: ignore[misc]

    def _close(self) -> None:
        showing, self._showing = self._showing, None
        if showing is not None:
            showing.stop()
        engine, self._engine = self._engine, None
        publisher, self._publisher = self._publisher, None
        if engine is not None:
            engine.leave()
        if publisher is not None:
            publisher.close()
        self._watch.end()
        relay, self._relay = self._relay, None
        if relay is not None:
            relay.stop()

    @property
    def is_ready(self) -> bool:
        """Whether the last tick reached the lease store and the broker."""
        return self._why_not_ready() is None

    def _why_not_ready(self) -> str | None:
        engine = self._engine
        return "it has not ticked yet" if engine is None else engine.why_not_ready

    @property
    def info(self) -> str:
        """For beat's banner."""
        return f"    . leases -> {redact_all(self._settings.lock_url)}"

    def _after_publish(self, dues: Sequence[Due]) -> None:
        for due in dues:
            try:
                self.after_publish(due)
            except Exception:
                # Raised from here it would look as though nothing was published, and all be sent again.
                logger.exception(
                    "beat_books_not_kept entry=%r slot=%s", due.entry, due.slot.isoformat()
                )
        if self._listeners:
            runs = tuple(map(self._name_of, dues))
            self._listeners.tell(SlotsPublished(at=self._now(), runs=runs, replica=self._replica))

    def _refuse(self, due: Due) -> None:
        if self._engine is not None:
            self._engine.refuse(due)
        if not due.again:  # of that it was told the first time
            self._tell_missed(due, "refused")

    def _tell_missed(self, due: Due, reason: str) -> None:
        logger.warning(
            "slot_missed entry=%r slot=%s reason=%r", due.entry, due.slot.isoformat(), reason
        )
        slot_missed.send(entry=due.entry, slot=due.slot, reason=reason)
        if self._listeners:
            self._listeners.tell(SlotMissed(at=self._now(), run=self._name_of(due), reason=reason))

    def _name_of(self, due: Due) -> RunName:
        try:
            task = self._roster.entry_of(due.entry).task if self._roster else ""
        except KeyError:  # it was removed meanwhile
            task = ""
        return RunName(run_id(self.app.main or "", due.entry, due.slot), task, due.entry, due.slot)

    def _terms_of(self, name: str) -> StartTerms | None:
        try:
            entry = self._roster.entry_of(name) if self._roster else None
        except KeyError:  # it was removed meanwhile
            entry = None
        return None if entry is None else terms_of(entry, self.app, self._settings)

    def _now(self) -> datetime:
        return (self._engine and self._engine.now) or datetime.now(UTC)

    def _known_schedule(self) -> Any:
        try:
            schedule = self.schedule
        except Exception:
            if self._roster is None:
                raise
            if not self._cannot_read:
                logger.exception("beat_schedule_not_read")
            self._cannot_read = True
            return self._roster.static
        self._cannot_read = False
        return schedule

    def _running_engine(self) -> Engine:
        schedule = self._known_schedule()
        if self._engine is None or self._roster is None:
            self._roster = Roster(self.app, self._settings, schedule)
            self._publisher = Publisher(
                self.app,
                self._roster.entry_of,
                on_refused=self._refuse,
                on_published=self._after_publish,
                more_headers=None if self._tracing is None else self._tracing.headers,
            )
            self._engine = self._new_engine(self._roster, self._publisher)
            self._engine.follow(map(self.plan_entry, schedule.values()))
            self._start_relay()
            self._start_showing(self._engine, self._roster)
        elif self._roster.static is not schedule:
            self._roster.static = schedule
            self._engine.follow(map(self.plan_entry, schedule.values()))
        return self._engine

    def _refuse_old_ledger(self) -> None:
        if self._settings.database_url is not None:
            from celery_singleton_lock.ledger import required_ledger_of

            required_ledger_of(self.app).ensure_usable()

    def _start_relay(self) -> None:
        """In each replica: they share what is in the outbox, and none has to be told to begin."""
        settings = self._settings
        if self._relay is None and settings.outbox_relay == "beat" and settings.outbox_database:
            # Not for those who have no database.
            from celery_singleton_lock.recovery.outbox.thread import RelayThread

            self._relay = RelayThread(self.app, settings)
            self._relay.start()

    def _start_showing(self, engine: Engine, roster: Roster) -> None:
        """Where there is a ledger: it has the schedule in a table, too."""
        if self._showing is None and self._settings.database_url is not None:
            from celery_singleton_lock.ledger import required_ledger_of

            from .showing import Showing

            self._showing = Showing(
                required_ledger_of(self.app),
                self._listeners,
                app_name=self.app.main or "",
                replica=self._replica,
                engine=engine,
                entry_of=roster.entry_of,
            )
            self._showing.start()

    def _new_engine(self, roster: Roster, publisher: Publisher) -> Engine:
        settings = self._settings
        store = open_measured_store(settings)
        if self._tracing is not None:
            store = tracing_module().traced(store, self._tracing)
        return Engine(
            store,
            publisher,
            replica=self._replica,
            slot_ttl=settings.slot_ttl,
            lock_ttl=settings.lock_ttl,
            start_within=settings.start_within,
            terms_of=self._terms_of,
            remember_for=settings.remember_for,
            on_missed=partial(self._tell_missed, reason="too old"),
            listeners=self._listeners,
            roster=roster,
            app_name=self.app.main or "",
        )


class SingletonScheduler(SingletonSchedulerMixin, Scheduler):  # type: ignore[misc]
    """Set ``beat_scheduler = "celery_singleton_lock:SingletonScheduler"`` and start as many beats as
    you like. The state is in the lease store: a schedule file (``-s``) may be given and is ignored.
    """

    Entry = SingletonEntry
    data: dict[str, Any]

    def __init__(self, app: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(app, *args, **kwargs)
        # Nothing is ever to be written to a file, so nothing is ever to be synchronised.
        self.sync_every = float("inf")

    # Changes of the schedule in this process are seen as a new mapping.

    def add(self, **kwargs: Any) -> Any:
        entry = super().add(**kwargs)
        self.data = dict(self.data)
        return entry

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        super().update_from_dict(dict_)
        self.data = dict(self.data)

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        super().merge_inplace(b)
        self.data = dict(self.data)
