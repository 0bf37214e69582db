"""The children of a server: some servers are many processes (PostgreSQL: one a connection)."""

from __future__ import annotations

import os
import signal
import subprocess  # nosec B404 # no shell, and no words of others
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessState:
    pid: int
    parent: int
    letter: str

    @property
    def is_alive(self) -> bool:
        # A zombie is gone for our purposes: in a container its new parent may never reap it.
        return self.letter not in "ZX"

    @property
    def is_stopped(self) -> bool:
        return self.letter in "Tt"


def descendants(pid: int) -> list[int]:
    """Living children, grandchildren and so on of ``pid``, parents before their children."""
    states = _all_processes()
    found = [pid]
    for parent in found:
        found += [s.pid for s in states.values() if s.parent == parent and s.is_alive]
    return found[1:]


def any_alive(pids: Iterable[int]) -> bool:
    states = _all_processes()
    return any(states[pid].is_alive for pid in pids if pid in states)


def all_stopped(pids: Iterable[int]) -> bool:
    """Whether each of ``pids`` is stopped or gone."""
    states = _all_processes()
    return all(s.is_stopped or not s.is_alive for pid in pids if (s := states.get(pid)))


def send_signal(pids: Iterable[int], signal_number: signal.Signals) -> None:
    """Signal each of ``pids`` that still exists."""
    for pid in pids:
        try:
            os.kill(pid, signal_number)
        except ProcessLookupError:
            continue


def _all_processes() -> dict[int, ProcessState]:
    states = _from_proc() if (_PROC / "self" / "stat").exists() else _from_ps()
    return {state.pid: state for state in states}


def _from_proc() -> Iterator[ProcessState]:
    for entry in _PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:  # it ended meanwhile
            continue
        # The name in parentheses may itself hold spaces and parentheses.
        letter, parent = stat.rpartition(")")[2].split()[:2]
        yield ProcessState(int(entry.name), int(parent), letter)


def _from_ps() -> Iterator[ProcessState]:
    listing = subprocess.run(  # nosec B603 # a constant
        ["/bin/ps", "-axo", "pid=,ppid=,stat="], check=True, capture_output=True, text=True
    ).stdout
    for line in listing.splitlines():
        pid, parent, state = line.split()[:3]
        yield ProcessState(int(pid), int(parent), state[0])
