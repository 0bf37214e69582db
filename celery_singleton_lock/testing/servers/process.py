"""One real server: a process, a port of 127.0.0.1 and a temporary directory."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess  # nosec B404 # no shell, and no words of others
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self, TypeVar

from .errors import ServerFailed, ServerNotPrepared
from .launch import Command, launch, run
from .ports import free_port
from .process_tree import all_stopped, any_alive, descendants, send_signal
from .waiting import holds_within

_Fact = TypeVar("_Fact")

_PORT_ATTEMPTS = 5
_LOG_LINES_SHOWN = 30

_started: list[Server] = []
"""Servers with a directory, in the order of their start. Forked children inherit the list."""


class Server(ABC):
    """A server that is started, hurt and stopped by tests.

    Use it as a context manager, or call `start` and `stop`. It belongs to the process that
    started it: in a forked child `stop` does nothing and the other verbs raise `RuntimeError`.
    It ends with its process: in order at an ordinary exit, by the kernel (Linux only) when the
    process is killed. Not for use by several threads at once.
    """

    kind: str
    """What the server is called in messages and in the name of its directory."""

    startup_timeout_s: ClassVar[float] = 30.0
    shutdown_timeout_s: ClassVar[float] = 5.0
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._port = 0
        self._owner_pid = 0
        self._log_start = 0

    # What a kind of server says about itself

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect; the same for as long as the server is not stopped."""

    @abstractmethod
    def _command(self) -> Command:
        """How the server is run in the foreground. Raises `ServerMissing`."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Whether clients are served now."""

    def _create_data(self) -> None:
        """Fill ``data``, which is new and empty; the port is known."""
        return

    # Facts

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, kept until `stop`."""
        return self._known(self._port or None)

    @property
    def directory(self) -> Path:
        """The temporary directory: ``data``, ``server.log`` and what else the server needs."""
        return self._known(self._directory)

    @property
    def data(self) -> Path:
        """What `erase` makes the server forget."""
        return self.directory / "data"

    @property
    def pid(self) -> int:
        """The process id; raises `RuntimeError` while the server is down."""
        return self._living().pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a paused one does."""
        if self._process is None:
            return False
        if self._owner_pid != os.getpid():  # only a parent can poll
            return any_alive([self._process.pid])
        return self._process.poll() is None

    def log_tail(self, lines: int = _LOG_LINES_SHOWN) -> str:
        """The last lines that the server wrote since it was last started."""
        return "\n".join(self._log().splitlines()[-lines:])

    # Verbs

    def start(self) -> Self:
        """Return when clients are served; do nothing if the server runs.

        After `kill` or `shut_down` it comes back on its port with its data; otherwise it is new.
        Raises `ServerMissing` or `ServerFailed`.
        """
        if self._directory is None:
            self._start_anew()
        elif not self.running:
            self._require_owner()
            self._launch()
        return self

    def stop(self) -> None:
        """End the server and remove its directory; in any state, any number of times."""
        if self._directory is None or self._owner_pid != os.getpid():
            return
        self.shut_down()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory = None
        self._port = 0
        _started.remove(self)

    def shut_down(self) -> None:
        """End the server in order, by SIGKILL if it takes too long; keep its port and data."""
        self._require_owner()
        if self._process is not None:
            family = self._family(self._process)
            # A stopped process does not act on a signal before it continues.
            send_signal(family, signal.SIGCONT)
            # Its children are the server's own to end.
            self._end(family, self._process, self.stop_signal)

    def kill(self) -> None:
        """End the server by SIGKILL and wait until it is gone; keep its port and data."""
        self._require_owner()
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)  # no child is born after our look
            family = self._family(self._process)
            send_signal(family[1:], signal.SIGKILL)
            self._end(family, self._process, signal.SIGKILL)

    def pause(self) -> None:
        """Freeze the whole server: its sockets stay open, and nothing answers."""
        self._require_owner()
        # The parent first, for a stopped process has no more children.
        self._freeze([self.pid])
        self._freeze(descendants(self.pid))

    def resume(self) -> None:
        """Let a paused server go on; do nothing to one that is not paused."""
        self._require_owner()
        send_signal([*reversed(descendants(self.pid)), self.pid], signal.SIGCONT)

    def restart(self, keep_data: bool = True) -> None:
        """Shut down if still running, and start on the same port, with or without the old data."""
        self.shut_down()
        if not keep_data:
            self.erase()
        self.start()

    def erase(self) -> None:
        """Make a server that is down forget its data."""
        self._require_owner()
        if self.running:
            raise RuntimeError(f"{self.kind} is running: shut it down before its data is erased")
        shutil.rmtree(self.data)
        self._make_data()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        where = f"port {self._port}" if self._port else "not started"
        return f"<{type(self).__name__} {self.kind} {where}>"

    # For kinds of servers

    @property
    def _launched_pid(self) -> int | None:
        """The process id of the latest launch, which may have ended by now."""
        return self._process.pid if self._process else None

    def _run_tool(self, command: Command) -> None:
        """Run a program that prepares the server; its output goes to the server's log."""
        self._log_start = self._log_size()
        tool, limit_s = command.argv[0], self.startup_timeout_s
        try:
            status = run(command, log=self._log_path, directory=self.directory, timeout_s=limit_s)
        except subprocess.TimeoutExpired as error:
            raise self._not_prepared(f"could not be prepared by {tool} in {limit_s:g} s") from error
        if status != 0:
            raise self._not_prepared(f"could not be prepared: {tool} exited with {status}")

    def _log(self) -> str:
        with self._log_path.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _failure(self, reason: str) -> ServerFailed:
        return ServerFailed(self.kind, reason, self.log_tail())

    def _not_prepared(self, reason: str) -> ServerFailed:
        # These end with advice, a screen of it: what went wrong stands above.
        return ServerNotPrepared(self.kind, reason, self.log_tail(3 * _LOG_LINES_SHOWN))

    # Inside

    @property
    def _log_path(self) -> Path:
        return self.directory / "server.log"

    def _log_size(self) -> int:
        return self._log_path.stat().st_size

    def _start_anew(self) -> None:
        # Retried because between the choice of a free port and its use others may take it, and once
        # because MariaDB's tool fails now and then on a busy machine.
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            try:
                self._open_directory()
                self._make_data()
                self._launch()
                return
            except BaseException as error:
                self.stop()
                taken = isinstance(error, ServerFailed) and error.port_was_taken
                may_pass = taken or (isinstance(error, ServerNotPrepared) and attempt == 1)
                if not may_pass or attempt == _PORT_ATTEMPTS:
                    raise

    def _open_directory(self) -> None:
        atexit.unregister(_stop_all)  # once is enough, and the latest runs first
        atexit.register(_stop_all)
        # Not TemporaryDirectory: its finalizer would delete the files in a forked child's exit.
        self._directory = Path(tempfile.mkdtemp(prefix=f"{self.kind}-"))
        self._port = free_port()
        self._owner_pid = os.getpid()
        self._log_path.touch()
        self._log_start = 0
        _started.append(self)

    def _make_data(self) -> None:
        self.data.mkdir(mode=0o700)
        self._create_data()

    def _launch(self) -> None:
        self._log_start = self._log_size()
        self._process = launch(self._command(), log=self._log_path, directory=self.directory)
        try:
            self._await_ready()
        except BaseException:
            self.kill()
            raise

    def _await_ready(self) -> None:
        in_time = holds_within(self.startup_timeout_s, lambda: not self.running or self._is_ready())
        if not self.running:
            raise self._failure(f"exited with {self._process and self._process.returncode}")
        if not in_time:
            raise self._failure(f"was not ready within {self.startup_timeout_s:g} s")

    def _family(self, process: subprocess.Popen[bytes]) -> list[int]:
        # An ended process was reaped by poll(), so its pid may be a stranger's.
        return [process.pid, *descendants(process.pid)] if process.poll() is None else []

    def _end(self, family: list[int], process: subprocess.Popen[bytes], by: signal.Signals) -> None:
        process.send_signal(by)
        if not holds_within(
            self.shutdown_timeout_s, lambda: not self.running and not any_alive(family)
        ):
            process.kill()
            send_signal(family[1:], signal.SIGKILL)
            process.wait()
        self._process = None

    def _freeze(self, pids: list[int]) -> None:
        send_signal(pids, signal.SIGSTOP)
        if not holds_within(self.shutdown_timeout_s, lambda: all_stopped(pids)):
            raise self._failure("could not be paused")

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"{self.kind} is not running: call start() first")
        return self._process

    def _require_owner(self) -> None:
        if self._directory is not None and self._owner_pid != os.getpid():
            raise RuntimeError(f"{self.kind} belongs to process {self._owner_pid}, not to this one")

    def _known(self, fact: _Fact | None) -> _Fact:
        if fact is None:
            raise RuntimeError(f"{self.kind} was not started: call start() first")
        return fact


def _stop_all() -> None:
    for server in reversed(_started.copy()):
        server.stop()
