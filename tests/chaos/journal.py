"""The history of a world: one file, to which every process appends lines of JSON.

It knows nothing of the code under test. The order of the lines is the order of what happened, as far as
anybody can tell: each is one write, and the kernel appends one after the other.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def uptime() -> float:
    """Seconds since the machine started, alike in all processes. Not from a clock of the process: that
    may be wrong on purpose."""
    return float(Path("/proc/uptime").read_text().split()[0])


@dataclass(frozen=True, slots=True)
class Event:
    """`line` orders; `at` (see `uptime`) is for windows of time, and for pictures."""

    line: int
    at: float
    what: str
    facts: dict[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        try:
            return self.facts[name]
        except KeyError:
            raise AttributeError(f"{self.what} at line {self.line} has no {name}") from None


class Journal:
    """Any number of processes may write; none waits for another, not even for one that was stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, what: str, **facts: Any) -> None:
        line = json.dumps({"what": what, "at": uptime(), "pid": os.getpid(), **facts}) + "\n"
        os.write(self._descriptor, line.encode())

    def read(self) -> Iterator[Event]:
        # One may be about to be written: it has no end yet.
        whole, _, _ = self.path.read_text().rpartition("\n")
        for number, text in enumerate(whole.splitlines()):
            facts = json.loads(text)
            yield Event(number, facts.pop("at"), facts.pop("what"), facts)


def new_id() -> str:
    return uuid.uuid4().hex[:12]
