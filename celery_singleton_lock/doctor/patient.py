"""The app that is looked at, and what the checks ask of it: each question once, also if it fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from celery_singleton_lock.broker import broker_errors, connect, patient_connection
from celery_singleton_lock.core.errors import BrokerUnavailable
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.leases import LeaseStore
from celery_singleton_lock.leases.redis.facts import ServerState, state_of
from celery_singleton_lock.leases.redis.store import RedisLeaseStore
from celery_singleton_lock.ledger import Ledger, ledger_of
from celery_singleton_lock.recovery.dead_letters import dead_letters_of
from celery_singleton_lock.recovery.letters import Letter
from celery_singleton_lock.recovery.locks import Lock, locks_in
from celery_singleton_lock.settings import Settings
from celery_singleton_lock.settings.broker import split_brokers, visibility_timeout
from celery_singleton_lock.settings.urls import scheme_of
from celery_singleton_lock.worker.parts import parts_of
from celery_singleton_lock.worker.task import SingletonTask

from .findings import NotApplicable

if TYPE_CHECKING:
    from celery_singleton_lock.beat.entry_state import Contents, EntryState
    from celery_singleton_lock.beat.schedule import Schedule

T = TypeVar("T")

LETTERS_READ: Final = 1000
LOCKS_READ: Final = 100_000
TRIES: Final = 5


class once(Generic[T]):  # noqa: N801 - stands where @property would
    """A property that is asked once. What it raises is raised again, and nobody is asked again."""

    def __init__(self, ask: Callable[[Any], T]) -> None:
        self._ask = ask
        self._name = ask.__name__

    def __get__(self, patient: Patient, owner: type) -> T:
        answers = patient.answers
        if self._name not in answers:
            try:
                answers[self._name] = (self._ask(patient), None)
            except Exception as raised:  # noqa: BLE001 - told to whoever asks
                answers[self._name] = (None, raised)
        answer, error = answers[self._name]
        if error is not None:
            raise error
        return answer  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class StoreClock:
    """`offset`: how far the store's clock is ahead of ours. `took`: the quickest of some answers."""

    offset: timedelta
    took: timedelta


@dataclass(frozen=True, slots=True)
class Worker:
    name: str
    tasks: frozenset[str]
    queues: frozenset[str]
    pool: str
    prefetch: int
    processes: int


class Patient:
    """Opening does no I/O. Every question may raise `SingletonError`, and `NotApplicable`."""

    def __init__(self, app: Any, *, patience: float = 1.0) -> None:
        self.app = app
        self.answers: dict[str, tuple[Any, Exception | None]] = {}
        self._patience = patience

    def close(self) -> None:
        """Drop the connection to the broker. The store is the app's own."""
        connection, _ = self.answers.get("broker", (None, None))
        if connection is not None:
            connection.collect()

    # The settings

    @property
    def conf(self) -> Any:
        return self.app.conf

    @once
    def settings(self) -> Settings:
        return Settings.from_app(self.app)

    @property
    def brokers(self) -> list[str]:
        return split_brokers(self.conf.broker_url)

    @property
    def broker_scheme(self) -> str:
        return scheme_of(self.brokers[0]) if self.brokers else "amqp"

    @property
    def visibility_timeout(self) -> timedelta:
        return visibility_timeout(self.brokers, self.conf.broker_transport_options or {})

    # The lease store

    @once
    def store(self) -> LeaseStore:
        return parts_of(self.app).store

    @once
    def store_clock(self) -> StoreClock:
        # The quickest answer tells the time best.
        return min((self._ask_the_time() for _ in range(TRIES)), key=lambda told: told.took)

    def _ask_the_time(self) -> StoreClock:
        began, asked_at = time.monotonic(), datetime.now(UTC)
        told = self.store.now()
        took = timedelta(seconds=time.monotonic() - began)
        return StoreClock(told - asked_at - took / 2, took)

    @once
    def store_servers(self) -> Sequence[ServerState]:
        store = self.store
        if not isinstance(store, RedisLeaseStore):
            raise NotApplicable("the lease store is no single Redis")
        return store.server_states()

    @once
    def locks(self) -> Sequence[Lock]:
        return [lock for lock, _ in zip(locks_in(self.store), range(LOCKS_READ), strict=False)]

    @once
    def ledger(self) -> Ledger:
        ledger = ledger_of(self.app)
        if ledger is None:
            raise NotApplicable("there is no ledger: singleton_database_url is not set")
        return ledger

    # The schedule

    @once
    def schedule(self) -> Schedule:
        from celery_singleton_lock.bootstrap import open_schedule

        return open_schedule(self.app)

    @once
    def contents(self) -> Contents:
        return self.schedule.contents()

    @once
    def entries(self) -> Sequence[EntryState]:
        return self.schedule.entries()

    @once
    def members(self) -> Sequence[str]:
        return self.schedule.replicas()

    # The broker

    @once
    def broker(self) -> Any:
        """A connection that works."""
        return self._connected()

    def _connected(self) -> Any:
        connection = patient_connection(self.app)
        try:
            connect(connection)
        except broker_errors(connection) as error:
            raise BrokerUnavailable(
                f"{redact(';'.join(self.brokers))}: {redact(str(error) or type(error).__name__)}"
            ) from error
        return connection

    @once
    def redis_of_broker(self) -> Any:
        """A client of the broker, where that is Redis."""
        if self.broker.transport.driver_type != "redis":
            raise NotApplicable("the broker is not Redis")
        from redis import Redis

        # Not the channel's own client, which adds a prefix to some keys.
        return Redis(connection_pool=self.broker.default_channel.pool)

    @once
    def broker_server(self) -> ServerState:
        return state_of(self.redis_of_broker, redact(self.brokers[0]))

    @once
    def letters(self) -> Sequence[Letter]:
        """The oldest of them."""
        return dead_letters_of(self.app).list(limit=LETTERS_READ)

    # Tasks and workers

    @once
    def tasks(self) -> Mapping[str, Any]:
        """The tasks that this process knows, without Celery's own."""
        self.app.loader.import_default_modules()
        return {name: task for name, task in self.app.tasks.items() if not name.startswith("celery.")}

    @once
    def singleton_tasks(self) -> Mapping[str, Any]:
        found = {name: task for name, task in self.tasks.items() if isinstance(task, SingletonTask)}
        if not found:
            raise NotApplicable("no task here is a SingletonTask")
        return found

    @once
    def workers(self) -> Mapping[str, Worker]:
        """Those that answer in time, by name."""
        if not self.conf.worker_enable_remote_control:
            raise NotApplicable("workers are not asked: worker_enable_remote_control is off")
        # At the same time: each takes all of our patience, as nobody knows how many there are.
        questions = ("registered", "active_queues", "stats")
        _ = self.broker
        with ThreadPoolExecutor() as pool:
            answers = dict(zip(questions, pool.map(self._ask_workers, questions), strict=True))
        # One that has answered some in time, and not all, is busy: half of it would mislead.
        names = set(answers["registered"]).intersection(*answers.values())
        return {name: _worker(name, answers) for name in sorted(names)}

    @once
    def beat_nodes(self) -> Sequence[str]:
        """The beats that answer Celery's ping, of whatever scheduler."""
        answers = self._ask_workers("ping")
        return sorted(name for name in answers if name.startswith("celerybeat@"))

    def _ask_workers(self, question: str) -> dict[str, Any]:
        # Raises what is clear where the broker is away, and at once the second time.
        _ = self.broker
        with self._connected() as connection:
            inspect = self.app.control.inspect(timeout=self._patience, connection=connection)
            return getattr(inspect, question)() or {}


def _worker(name: str, answers: Mapping[str, Mapping[str, Any]]) -> Worker:
    stats = answers["stats"].get(name) or {}
    pool = stats.get("pool") or {}
    return Worker(
        name,
        # A task that tells of its options is listed as "name [key=value]".
        frozenset(each.partition(" ")[0] for each in answers["registered"].get(name) or ()),
        frozenset(each["name"] for each in answers["active_queues"].get(name) or ()),
        str(pool.get("implementation", "")),
        int(stats.get("prefetch_count") or 0),
        int(pool.get("max-concurrency") or 1),
    )
