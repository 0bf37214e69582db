"""Where leases are kept in a world: servers, the links to them, and what can be done to them."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from celery_singleton_lock.testing.servers import (
    MariaDBServer,
    PostgresServer,
    RedisCluster,
    RedisServer,
    SentinelSet,
    Server,
    TcpProxy,
)
from celery_singleton_lock.testing.servers.launch import Command

from .faults import REDLOCK_NODES, Fault, StoreKind

SMALL_DISK_MB = 24
Undo = Callable[[], None]


def faketime_library() -> Path | None:
    return next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))), None)


class Links:
    """A proxy for each who connects to one server, so that each can be cut off alone."""

    def __init__(self, port: Callable[[], int]) -> None:
        self._port = port
        self._proxies: dict[str, TcpProxy] = {}

    def port_for(self, end: str) -> int:
        if end not in self._proxies:
            self._proxies[end] = TcpProxy(self._port()).start()
        return self._proxies[end].port

    def hurt(self, end: str, fault: Fault) -> Undo:
        proxy = self._proxies[end]
        match fault.what:
            case "cut":
                proxy.cut()
                return proxy.heal
            case "blackhole":
                proxy.blackhole()
            case "delay":
                proxy.delay(fault.amount)
            case "refuse":
                proxy.refuse()
                proxy.cut()
        return proxy.heal

    def stop(self) -> None:
        for proxy in self._proxies.values():
            proxy.stop()


def hurt_server(server: Server, fault: Fault) -> Undo:
    match fault.what:
        case "kill":
            server.kill()
            return lambda: _start(server)
        case "forget":
            server.kill()
            server.erase()
            return lambda: _start(server)
        case "stop":
            server.pause()
            return server.resume
    raise ValueError(f"a server does not suffer {fault.what!r}")


def _start(server: Server) -> None:
    server.start()


class Clocked(RedisServer):
    """Its wall clock can be moved while it runs; intervals are measured right all the same."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._library = faketime_library()
        self._offset = Path(tempfile.mkstemp(prefix="clock-")[1])
        self.move(0)

    def move(self, seconds: float) -> None:
        # Replaced as a whole: the server reads it all the time.
        new = self._offset.with_suffix(".new")
        new.write_text(f"{seconds:+.2f}\n")
        new.replace(self._offset)

    @property
    def has_clock(self) -> bool:
        return self._library is not None

    def _command(self) -> Command:
        command = super()._command()
        if self._library is None:
            return command
        return Command(
            command.argv,
            {
                **command.environment,
                "LD_PRELOAD": str(self._library),
                "FAKETIME_TIMESTAMP_FILE": str(self._offset),
                "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            },
            command.user,
        )

    def stop(self) -> None:
        super().stop()
        self._offset.unlink(missing_ok=True)


class SmallDisk:
    """A file system that is soon full. Needs root; `path` is None where it cannot be had."""

    def __init__(self) -> None:
        self.path: Path | None = None
        place = Path(tempfile.mkdtemp(prefix="small-disk-"))
        mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MB}m,mode=0777", "tmpfs", str(place)]
        if os.getuid() == 0 and subprocess.run(mount, capture_output=True, check=False).returncode == 0:
            self.path = place
        else:
            place.rmdir()

    @contextmanager
    def as_temporary(self) -> Iterator[None]:
        """Temporary directories are made on it."""
        before, tempfile.tempdir = tempfile.tempdir, str(self.path) if self.path else tempfile.tempdir
        try:
            yield
        finally:
            tempfile.tempdir = before

    def fill(self) -> Undo:
        assert self.path is not None
        ballast = self.path / "ballast"
        with suppress(OSError), ballast.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        return lambda: ballast.unlink(missing_ok=True)

    def remove(self) -> None:
        if self.path is not None:
            subprocess.run(["umount", "-l", str(self.path)], check=False)
            shutil.rmtree(self.path, ignore_errors=True)
            self.path = None


class Store:
    """`urls_for` whom: as `singleton_lock_url` takes them. `direct_urls`: for a look past all links."""

    def start(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def urls_for(self, replica: str) -> str | list[str]:
        return self.direct_urls

    @property
    def direct_urls(self) -> str | list[str]:
        raise NotImplementedError

    def hurt(self, fault: Fault) -> Undo | None:
        """Returns how to end it; None: it cannot be done here."""
        raise NotImplementedError

    def as_setting(self, replica: str) -> str:
        return json.dumps(self.urls_for(replica))

    @property
    def monitored(self) -> RedisServer | None:
        """One whose commands tell of every grant."""
        return None


class OneServer(Store):
    def __init__(self, server: Server) -> None:
        self.server = server
        self.links = Links(lambda: self.server.port)
        self._ports: dict[str, int] = {}

    def start(self) -> None:
        self.server.start()

    def stop(self) -> None:
        self.links.stop()
        self.server.stop()

    def urls_for(self, replica: str) -> str:
        port = self.links.port_for(replica)
        return self.direct_urls.replace(f":{self.server.port}", f":{port}")

    @property
    def direct_urls(self) -> str:
        return self.server.url

    def hurt(self, fault: Fault) -> Undo | None:
        end, _, server = fault.target.partition(">")
        return self.links.hurt(end, fault) if server else hurt_server(self.server, fault)


class OneRedis(OneServer):
    server: Clocked

    def __init__(self) -> None:
        super().__init__(Clocked(persistent=True))
        self.disk = SmallDisk()

    def start(self) -> None:
        with self.disk.as_temporary():
            super().start()

    def stop(self) -> None:
        super().stop()
        self.disk.remove()

    @property
    def monitored(self) -> RedisServer:
        return self.server

    def hurt(self, fault: Fault) -> Undo | None:
        match fault.what:
            case "clock":
                if not self.server.has_clock:
                    return None
                self.server.move(fault.amount)
                return lambda: self.server.move(0)
            case "fill-disk":
                return self._fill() if self.disk.path else None
        return super().hurt(fault)

    def _fill(self) -> Undo:
        empty = self.disk.fill()

        def heal() -> None:
            empty()
            # Where every write must be on the disk, a server that cannot write ends itself.
            if not self.server.running:
                self.server.start()

        return heal


class Quorum(Store):
    def __init__(self) -> None:
        self.nodes = [RedisServer(persistent=True) for _ in range(REDLOCK_NODES)]
        self.links = [Links(lambda node=node: node.port) for node in self.nodes]  # type: ignore[misc]

    def start(self) -> None:
        for node in self.nodes:
            node.start()

    def stop(self) -> None:
        for links, node in zip(self.links, self.nodes, strict=True):
            links.stop()
            node.stop()

    def urls_for(self, replica: str) -> list[str]:
        return [f"redis://127.0.0.1:{links.port_for('all')}/0" for links in self.links]

    @property
    def direct_urls(self) -> list[str]:
        # As the replicas name them: a quorum knows its nodes by their addresses.
        return self.urls_for("")

    def hurt(self, fault: Fault) -> Undo | None:
        end, _, server = fault.target.partition(">")
        number = int((server or end).rpartition("-")[2])
        if server:
            return self.links[number].hurt("all", fault)
        return hurt_server(self.nodes[number], fault)


class Replicated(Store):
    def __init__(self, servers: SentinelSet | RedisCluster) -> None:
        self.servers = servers

    def start(self) -> None:
        self.servers.start()

    def stop(self) -> None:
        self.servers.stop()

    @property
    def direct_urls(self) -> str:
        return self.servers.url

    def hurt(self, fault: Fault) -> Undo | None:
        servers = self.servers
        if isinstance(servers, SentinelSet):
            try:
                master: Server = servers.master
            except RuntimeError:
                return None
        else:
            # The first node is the one that the URL names: it must be there for who connects anew.
            masters = {servers.master_of(key) for key in "abcdefgh"} - {servers.nodes[0]}
            master = sorted(masters, key=lambda node: node.port)[0]
        if not master.running:
            return None
        if fault.what == "kill-master":
            master.kill()
            return lambda: _start(master)
        master.pause()
        return master.resume


class File(Store):
    def __init__(self) -> None:
        self.disk = SmallDisk()
        self._place = self.disk.path or Path(tempfile.mkdtemp(prefix="sqlite-"))

    def start(self) -> None:
        pass

    def stop(self) -> None:
        shutil.rmtree(self._place, ignore_errors=True)
        self.disk.remove()

    @property
    def direct_urls(self) -> str:
        return f"sqlite:///{self._place}/locks.sqlite"

    def hurt(self, fault: Fault) -> Undo | None:
        if fault.what == "fill-disk":
            return self.disk.fill() if self.disk.path else None
        holder = sqlite3.connect(
            self._place / "locks.sqlite", timeout=5, isolation_level=None, check_same_thread=False
        )
        with suppress(sqlite3.OperationalError):
            holder.execute("BEGIN IMMEDIATE")
        return holder.close


def make_store(kind: StoreKind) -> Store:
    match kind:
        case "redis":
            return OneRedis()
        case "sentinel":
            return Replicated(SentinelSet(persistent=True))
        case "cluster":
            return Replicated(RedisCluster(persistent=True))
        case "redlock":
            return Quorum()
        case "postgres":
            return OneServer(PostgresServer())
        case "mariadb":
            return OneServer(MariaDBServer())
        case "sqlite":
            return File()


def wait_until(fact: Callable[[], bool], within: float, every: float = 0.1) -> bool:
    give_up_at = time.monotonic() + within
    while not fact():
        if time.monotonic() >= give_up_at:
            return False
        time.sleep(every)
    return True
