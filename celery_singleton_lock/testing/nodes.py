"""The nodes of pytest-celery over ordinary processes: what it does with containers, without Docker.

Only what its nodes ask of a container is here: its state, its log, to be killed, restarted, and to run
commands beside it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess  # nosec B404 # no shell, and no words of others
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_celery import CeleryWorkerContainer, RabbitMQContainer, RedisContainer

from .servers import RabbitMQServer, RedisServer, Server
from .servers.launch import Command, launch

READY_WITHIN_S = 60.0


class ServerNode:
    """A broker or a backend. It keeps its port, and its data, while it is killed and restarted."""

    server: Server

    def __init__(self, server: Server) -> None:
        self.server = server.start()

    @property
    def id(self) -> str:
        return f"{self.server.kind}-{self.server.port}"

    @property
    def name(self) -> str:
        return self.id

    @property
    def status(self) -> str:
        return "running" if self.server.running else "exited"

    @property
    def url(self) -> str:
        return self.server.url

    host_url = url

    @property
    def hostname(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self.server.port

    def ready(self) -> bool:
        return self.server.running

    def logs(self) -> str:
        return self.server.log_tail(1_000_000)

    def kill(self, signal: str | int = "SIGKILL") -> None:
        if signal_of(signal) == signal_of("SIGKILL"):
            self.server.kill()
        else:
            self.server.shut_down()

    def restart(self, timeout: float = 0) -> None:
        self.server.restart()

    def reload(self) -> None:
        """Nothing is kept that could be out of date."""

    def teardown(self) -> None:
        self.server.stop()


class RedisNode(ServerNode, RedisContainer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(RedisServer(persistent=True))


class RabbitMQNode(ServerNode, RabbitMQContainer):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(RabbitMQServer())


class WorkerNode(CeleryWorkerContainer):  # type: ignore[misc]
    """A worker: a process of its own, in a directory that has what a container's volume would."""

    def __init__(
        self,
        place: Path,
        command: Sequence[str],
        environment: Mapping[str, str],
        content: Mapping[str, bytes],
    ) -> None:
        self._place = place
        self._command = list(command)
        self._environment = {name: str(value) for name, value in environment.items()}
        self._log_starts_at = 0
        self._log = place / "worker.log"
        for name, text in content.items():
            file = place / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        self._log_starts_at = self._log.stat().st_size if self._log.exists() else 0
        argv = [sys.executable, "-m", *self._command]
        return launch(Command(argv, self._environment), log=self._log, directory=self._place)

    @property
    def id(self) -> str:
        return f"worker-{self._process.pid}"

    @property
    def name(self) -> str:
        return self._place.name

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> str:
        return "running" if self._process.poll() is None else "exited"

    def logs(self) -> str:
        """What it wrote since it was last started."""
        with self._log.open("rb") as log:
            log.seek(self._log_starts_at)
            return log.read().decode(errors="replace")

    def ready(self) -> bool:
        give_up_at = time.monotonic() + READY_WITHIN_S
        while self.ready_prompt not in self.logs():
            if self.status != "running":
                raise RuntimeError(f"the worker exited:\n{self.logs()}")
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"the worker is not ready after {READY_WITHIN_S} s:\n{self.logs()}")
            time.sleep(0.05)
        return True

    def kill(self, signal: str | int = "SIGKILL") -> None:
        """SIGKILL ends its pool, too, as it does in a container; any other goes to the worker alone."""
        number = signal_of(signal)
        with suppress(ProcessLookupError):
            if number == signal_of("SIGKILL"):
                os.killpg(self._process.pid, number)
            else:
                os.kill(self._process.pid, number)
        self._process.wait(READY_WITHIN_S)

    def restart(self, timeout: float = READY_WITHIN_S) -> None:
        self.kill()
        self._process = self._start()
        self.ready()

    def reload(self) -> None:
        """Nothing is kept that could be out of date."""

    def exec_run(self, command: str | Sequence[str]) -> tuple[int, bytes]:
        """Run a command where the worker runs, with its environment: its exit code and its output."""
        argv = shlex.split(command) if isinstance(command, str) else list(command)
        if argv[0] == "python":
            argv[0] = sys.executable
        environment = {**os.environ, **self._environment}
        done = subprocess.run(  # nosec B603 # the command is the test's
            argv, cwd=self._place, env=environment, capture_output=True, check=False, timeout=60
        )
        return done.returncode, done.stdout + done.stderr

    def teardown(self) -> None:
        self.kill()


def signal_of(given: str | int) -> signal.Signals:
    return signal.Signals[given] if isinstance(given, str) else signal.Signals(given)
