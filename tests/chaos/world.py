"""A world of real processes: beats, workers, a broker, a lease store, and who hurts them."""

from __future__ import annotations

import heapq
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from celery_singleton_lock import RecordState, StoreUnavailable, open_store
from celery_singleton_lock.testing.servers import RabbitMQServer, RedisServer
from celery_singleton_lock.testing.servers.launch import Command, launch
from celery_singleton_lock.testing.servers.process_tree import descendants, send_signal

from . import app as application
from .faults import BEATS, WORKERS, Fault, StoreKind
from .journal import Journal, uptime
from .monitors import BrokerMonitor, Monitor, StoreMonitor
from .stores import Links, Undo, faketime_library, hurt_server, make_store, wait_until

ROOT: Final = Path(__file__).parents[2]
BEAT: Final = "beat --pidfile= -l INFO"
WORKER: Final = "worker -n {name}@chaos -P {pool} -c 2 --without-gossip --without-mingle -l INFO"
STALL_S: Final = 0.4
UP_WITHIN_S: Final = 60.0
WRONG_CLOCK: Final = "-3600s"
"""Of the second beat, all the time: slots go by the store's clock."""
BrokerKind = Literal["redis", "rabbitmq"]


class Replica:
    """One beat or worker: the same name, one process after the other."""

    def __init__(self, name: str, command: str, environment: dict[str, str], place: Path) -> None:
        self.name = name
        self._command = [sys.executable, "-m", "celery", "-A", "tests.chaos.app", *command.split()]
        self._environment = environment
        self._log = place / f"{name}.log"
        self._place = place
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = Command(self._command, {**self._environment, "TMPDIR": str(self._place)})
        self.process = launch(command, log=self._log, directory=ROOT)

    def signal(self, number: signal.Signals) -> None:
        """To the process and to the children of its pool, which are in its group."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._reap()

    def behead(self) -> None:
        if self.process is not None:
            self.process.kill()
        self._reap()

    def kill_child(self) -> None:
        children = descendants(self.process.pid) if self.process is not None else []
        for child in children[:1]:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)

    def tell_stacks(self) -> None:
        """Into its log: where each thread is, of it and of its children."""
        if self.process is not None:
            send_signal([self.process.pid, *descendants(self.process.pid)], application.TELL_STACKS)
            time.sleep(0.5)  # nobody tells when it is written

    def _reap(self) -> None:
        if self.process is not None:
            self.process.wait(10)
            # Whoever it leaves behind is in its group, and is ended with the world.
            self.process = None

    @property
    def has_exited(self) -> int | None:
        return self.process.poll() if self.process is not None else None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class World:
    def __init__(
        self,
        place: Path,
        store: StoreKind,
        broker: BrokerKind = "redis",
        *,
        pool: str = "prefork",
        environment: dict[str, str] | None = None,
    ) -> None:
        self.place = place
        self.journal = Journal(place / "journal.jsonl")
        self._store_kind = store
        self.store = make_store(store)
        self.broker: RedisServer | RabbitMQServer = (
            RedisServer(persistent=True) if broker == "redis" else RabbitMQServer()
        )
        self._broker_links = Links(lambda: self.broker.port)
        self._pool = pool
        self._environment = environment or {}
        self.replicas: dict[str, Replica] = {}
        self._groups: list[int] = []
        self._monitors: list[Monitor] = []
        self._is_over = threading.Event()

    # Beginning and end

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            self.journal.write("began", wall=time.time())
            self.store.start()
            self.broker.start()
            self._watch()
            for name in (*BEATS, *WORKERS):
                self._start_replica(name)
            yield
        finally:
            self._end()

    def _watch(self) -> None:
        if isinstance(self.broker, RedisServer):
            self._monitors.append(BrokerMonitor(self.broker, self.journal))
        if self.store.monitored is not None:
            self._monitors.append(StoreMonitor(self.store.monitored, self.journal))
        for monitor in self._monitors:
            monitor.start()
            monitor.is_watching.wait(5)
        threading.Thread(target=self._tell_stalls, daemon=True).start()

    def _tell_stalls(self) -> None:
        """Of the machine itself: nobody is to blame for what happens then."""
        while not self._is_over.is_set():
            began = time.monotonic()
            time.sleep(0.1)
            took = time.monotonic() - began
            if took > STALL_S:
                self.journal.write("stall", lasted=took)

    def _start_replica(self, name: str) -> None:
        if name not in self.replicas:
            self.replicas[name] = self._make_replica(name)
        replica = self.replicas[name]
        replica.start()
        assert replica.process is not None
        self._groups.append(replica.process.pid)
        self.journal.write("replica", name=name, state="started", process=replica.process.pid)

    def _make_replica(self, name: str) -> Replica:
        is_beat = name in BEATS
        environment = {
            "CHAOS_JOURNAL": str(self.journal.path),
            "CHAOS_BROKER": self._broker_url_for(name),
            "CHAOS_LOCKS": self.store.as_setting(name),
            "CHAOS_REPLICA": name,
            **self._environment,
        }
        library = faketime_library()
        # SQLite has no clock but that of the process that opens it.
        if name == BEATS[-1] and library is not None and self._store_kind != "sqlite":
            environment |= {"LD_PRELOAD": str(library), "FAKETIME": WRONG_CLOCK}
        command = BEAT if is_beat else WORKER.format(name=name, pool=self._pool)
        return Replica(name, command, environment, self.place)

    def _broker_url_for(self, name: str) -> str:
        port = self._broker_links.port_for(name)
        return self.broker.url.replace(f":{self.broker.port}", f":{port}")

    def _end(self) -> None:
        self._is_over.set()
        for monitor in self._monitors:
            monitor.stop()
        for group in self._groups:
            # A group of which nobody is left has no number, and nobody else can have got it: it is
            # that of a session which we started.
            for number in (signal.SIGCONT, signal.SIGKILL):
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(group, number)
        for replica in self.replicas.values():
            if replica.process is not None:
                replica.process.wait(10)
        self._broker_links.stop()
        self.broker.stop()
        self.store.stop()

    def wait_until_up(self, within: float = UP_WITHIN_S) -> None:
        """Every worker is ready, and something was published."""
        if not wait_until(self._is_up, within):
            logs = "\n".join(f"{name}:\n{each.log[-2000:]}" for name, each in self.replicas.items())
            raise RuntimeError(f"the world did not come up within {within:g} s\n{logs}")

    def _is_up(self) -> bool:
        if self._count("ready") < len(WORKERS) or not self._count("start"):
            return False
        # RabbitMQ forgets a new queue, and what it confirmed to have in it, if it is killed within two
        # seconds: the queue of the letters is made by the first one.
        failed = [event.at for event in self.journal.read() if event.facts.get("outcome") == "failed"]
        return isinstance(self.broker, RedisServer) or bool(failed and failed[0] < uptime() - 3)

    def _count(self, what: str) -> int:
        return sum(event.what == what for event in self.journal.read())

    # The nemesis

    def suffer(self, faults: Sequence[Fault], seconds: float) -> None:
        """Play the plan; all is healed in the end."""
        began = time.monotonic()
        order = count()
        agenda: list[tuple[float, int, Callable[[], None]]] = []

        def begin(number: int, fault: Fault) -> Callable[[], None]:
            def act() -> None:
                undo = self._hurt(fault)
                if undo is None:
                    self.journal.write("fault_impossible", kind=fault.what, target=fault.target)
                    return
                self.journal.write(
                    "fault", number=number, kind=fault.what, target=fault.target, amount=fault.amount
                )
                heapq.heappush(
                    agenda, (fault.at + fault.lasts, next(order), lambda: self._heal(number, undo))
                )

            return act

        for number, fault in enumerate(faults):
            heapq.heappush(agenda, (fault.at, next(order), begin(number, fault)))
        while agenda:
            due, _, act = heapq.heappop(agenda)
            self._wait_until(began + due)
            act()
        self._wait_until(began + seconds)
        self.journal.write("healed")

    def _wait_until(self, until: float) -> None:
        while (left := until - time.monotonic()) > 0:
            self._look_for_exits()
            time.sleep(min(left, 0.2))

    def _heal(self, number: int, undo: Undo) -> None:
        undo()
        self.journal.write("fault_end", number=number)

    def _hurt(self, fault: Fault) -> Undo | None:
        end, _, server = fault.target.partition(">")
        if server == "broker":
            return self._broker_links.hurt(end, fault)
        if fault.target == "broker":
            return hurt_server(self.broker, fault)
        if "store" in fault.target:
            return self.store.hurt(fault)
        return self._hurt_replica(self.replicas[fault.target], fault)

    def _hurt_replica(self, replica: Replica, fault: Fault) -> Undo | None:
        if replica.process is None:
            return None
        match fault.what:
            case "kill":
                replica.kill()
            case "behead":
                replica.behead()
            case "kill-child":
                # Celery gives up a worker whose first children die before they are ready.
                if not self._has_been_ready(replica.process.pid):
                    return None
                replica.kill_child()
                return lambda: None
            case "stop":
                replica.signal(signal.SIGSTOP)
                return lambda: replica.signal(signal.SIGCONT)
        self.journal.write("replica", name=replica.name, state=fault.what)
        return lambda: self._start_replica(replica.name)

    def _has_been_ready(self, worker: int) -> bool:
        ready = [event for event in self.journal.read() if event.what == "ready"]
        return any(event.pid == worker and event.at < uptime() - 2 for event in ready)

    def _look_for_exits(self) -> None:
        for replica in self.replicas.values():
            code = replica.has_exited
            if code is not None:
                self.journal.write("exited", name=replica.name, code=code, log=replica.log[-3000:])
                replica.process = None

    # After the faults

    def calm_down(self, calm_s: float, is_settled: Callable[[], bool], within: float) -> None:
        """A while without faults, in which beats that were just started come up; then no more is
        published, and what was begun may end."""
        healed = datetime.now(UTC).isoformat()
        wait_until(lambda: self._has_published_after(healed), UP_WITHIN_S, every=0.5)
        self._wait_until(time.monotonic() + calm_s)
        self.journal.write("last_slot")
        for name in BEATS:
            self._end_in_order(self.replicas[name])

        def has_ended() -> bool:
            self._look_for_exits()
            return is_settled()

        wait_until(has_ended, within, every=1.0)
        self._tell_what_is_left()
        for name in WORKERS:
            self._end_in_order(self.replicas[name])

    def _has_published_after(self, moment: str) -> bool:
        return any((event.facts.get("slot") or "") > moment for event in self.journal.read())

    def _end_in_order(self, replica: Replica, within: float = 25.0) -> None:
        if replica.process is None:
            return
        replica.process.send_signal(signal.SIGTERM)
        try:
            code = replica.process.wait(within)
        except subprocess.TimeoutExpired:
            replica.tell_stacks()
            self.journal.write("would_not_end", name=replica.name, log=replica.log[-8000:])
            replica.kill()
            return
        self.journal.write("replica", name=replica.name, state="ended", code=code)
        replica.process = None

    def _tell_what_is_left(self) -> None:
        for text in self.letters():
            self.journal.write("letter", **text)
        if isinstance(self.broker, RedisServer):
            with self.broker.connect() as client:
                broker: Any = client
                self.journal.write(
                    "left", queued=broker.llen("celery"), unacknowledged=broker.hlen("unacked")
                )
        store = open_store(self.store.direct_urls)
        try:
            for record in store.scan():
                if record.state in (RecordState.HELD, RecordState.EXPIRED) and record.is_listed:
                    self.journal.write("lease_left", key=record.key, state=record.state.name)
        except StoreUnavailable as error:
            self.journal.write("store_left", reason=error.reason)
        finally:
            store.close()

    def letters(self) -> list[dict[str, Any]]:
        from celery import Celery

        from celery_singleton_lock.recovery.dead_letters import dead_letters_of

        app = Celery("chaos", broker=self.broker.url, set_as_current=False)
        app.conf.singleton_lock_url = "memory://"
        letters = dead_letters_of(app)
        try:
            return [{"run": each.run_id, "letter": each.id} for each in letters.list()]
        finally:
            letters.close()
            app.close()

    def logs(self) -> dict[str, str]:
        return {name: replica.log for name, replica in self.replicas.items()}


def new_place(parent: Path | None = None) -> Path:
    return Path(tempfile.mkdtemp(prefix="chaos-", dir=parent))
