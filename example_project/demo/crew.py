"""The beats and workers of the shop: real `celery` processes, to be cruel to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from celery_singleton_lock.testing.servers.launch import Command, launch
from celery_singleton_lock.testing.servers.ports import free_port

ROOT: Final = Path(__file__).parents[2]
BEAT: Final = "beat --pidfile= -l INFO"
WORKER: Final = "worker -n {name}@shop -c 1 --without-gossip --without-mingle -l INFO"
FLOWER: Final = "singleton flower --address=127.0.0.1 --port={port}"


class Crew:
    """None of them outlives the block, and the kernel ends them should the demo itself be killed."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._numbers = {"b": 0, "w": 0, "f": 0}
        self._killed: set[str] = set()

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._processes:
            self._kill(name)

    # Doing

    def start_beat(self) -> str:
        return self._start("b", BEAT)

    def start_worker(self) -> str:
        return self._start("w", WORKER)

    def start_flower(self) -> str:
        """Returns its address."""
        port = free_port()
        self._start("f", FLOWER.format(port=port))
        return f"http://127.0.0.1:{port}"

    def kill(self, name: str) -> None:
        """By SIGKILL, its pool too."""
        self._killed.add(name)
        self._kill(name)

    def stop(self, name: str) -> None:
        os.killpg(self._processes[name].pid, signal.SIGSTOP)

    def wake(self, name: str) -> None:
        os.killpg(self._processes[name].pid, signal.SIGCONT)

    def _start(self, kind: str, command: str) -> str:
        self._numbers[kind] += 1
        name = f"{kind}{self._numbers[kind]}"
        words = [sys.executable, "-m", "celery", "-A", "example_project.app"]
        words += command.format(name=name).split()
        # A worker that is killed leaves files behind: here they end with the demo.
        # Its pages may be changed by whoever is on this machine: nobody else can reach them.
        start = Command(words, {"TMPDIR": str(self._place), "FLOWER_UNAUTHENTICATED_API": "true"})
        self._processes[name] = launch(start, log=self._log_of(name), directory=ROOT)
        return name

    def _kill(self, name: str) -> None:
        process = self._processes[name]
        # It leads a group of its own, in which the children of its pool are.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    # Asking

    @property
    def beats(self) -> list[str]:
        """All that there ever were."""
        return [name for name in self._processes if name.startswith("b")]

    @property
    def living(self) -> list[str]:
        return [name for name, process in self._processes.items() if process.poll() is None]

    def fallen(self) -> Iterator[str]:
        """Who has ended, although nobody killed him."""
        for name, process in self._processes.items():
            if name not in self._killed and process.poll() is not None:
                yield name

    def log(self, name: str) -> str:
        return self._log_of(name).read_text(errors="replace")

    def last_words(self, names: Sequence[str], most: int) -> str:
        """The last lines that they logged, that many of each."""
        tails = {name: self.log(name).splitlines()[-most:] for name in names}
        return "\n".join(f"{name}: {line}" for name, lines in tails.items() for line in lines)

    def _log_of(self, name: str) -> Path:
        return self._place / f"{name}.log"
