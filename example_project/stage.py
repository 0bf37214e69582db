"""What the demo needs beside the package: processes to be cruel to, and a line for each fact."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, Literal

News = Literal["asks", "holds", "is done", "is told", "is refused"]

WORDS: Final[dict[News, str]] = {
    "asks": "asks for the lease",
    "holds": "HOLDS the lease, fence {fence}",
    "is done": "is done, and gives the lease back",
    "is told": "is told LeaseLost: its fence {fence} is not the latest any more",
    "is refused": "gives the lease back all the same, and is refused",
}
COLOURS: Final = (36, 33, 35, 32)
BOLD: Final = 1
PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True)
class Event:
    at: float
    """On the monotonic clock, which all processes of a machine share."""
    who: str
    news: News
    fence: int


class DemoFailed(Exception):
    """Something did not happen that had to."""


class Demo:
    """The demo, as one of its processes sees it."""

    def __init__(self, line: Connection) -> None:
        self._line = line

    def tell(self, news: News, fence: int = 0) -> None:
        name = multiprocessing.current_process().name
        self._line.send(Event(time.monotonic(), name, news, fence))

    def has_enough(self, *, within: float) -> bool:
        """Whether the demo says, in so many seconds, that the work is done."""
        return self._line.poll(within)


Part = Callable[[str, Demo], None]
"""What a process does: with the URL of the server, and the demo to tell of it."""


class Cast:
    """The processes. They begin together, and none of them outlives the block."""

    PATIENCE = 20.0

    def __init__(self, names: Sequence[str], part: Part, url: str) -> None:
        self._began = time.monotonic()
        self._colours = dict(zip(names, COLOURS, strict=False))
        self._heard: list[Event] = []
        self._lines: dict[str, Connection] = {}
        self._processes: dict[str, BaseProcess] = {}
        # Not by fork, which copies locks but not the threads that would open them.
        spawn = multiprocessing.get_context("spawn")
        self._curtain = spawn.Barrier(len(names) + 1)
        for name in names:
            # A pipe each: one that is killed while it writes to a queue of all would block them all.
            self._lines[name], theirs = spawn.Pipe()
            scene = (part, url, theirs, self._curtain)
            self._processes[name] = spawn.Process(target=_perform, args=scene, name=name)

    def __enter__(self) -> Cast:
        try:
            with _deaf_to_ctrl_c():
                for process in self._processes.values():
                    process.start()
            self._curtain.wait(self.PATIENCE)
        except threading.BrokenBarrierError:
            self._end()
            raise DemoFailed("its processes did not start; what they said is above") from None
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for process in self._processes.values():
            if process.pid is not None:
                process.kill()  # SIGTERM would not wake one that is stopped
                process.join()

    # Doing

    def send_signal(self, name: str, number: signal.Signals) -> float:
        """Returns when that was."""
        self.say("demo", f"sends {number.name} to {name}")
        at = time.monotonic()
        os.kill(self._pid(name), number)
        return at

    def tell_enough(self, name: str) -> None:
        self.say("demo", f"tells {name} to finish")
        self._lines[name].send(None)

    # Hearing

    def wait_for(self, news: News) -> Event:
        """The first such event that nobody waited for. All that is heard meanwhile is printed."""
        deadline = time.monotonic() + self.PATIENCE
        while time.monotonic() < deadline:
            for event in self._heard:
                if event.news == news:
                    self._heard.remove(event)
                    return event
            if not self._lines:
                raise DemoFailed("its processes have ended; what they said is above")
            self._listen()
        raise DemoFailed(f"waited {self.PATIENCE:g} s for somebody who {news!r}")

    def _listen(self) -> None:
        names = {line: name for name, line in self._lines.items()}
        for line in names.keys() & set(wait(list(names), timeout=0.1)):
            try:
                event: Event = line.recv()
            except (EOFError, ConnectionError):
                del self._lines[names[line]]  # it has ended
            else:
                self._heard.append(event)
                self.say(event.who, WORDS[event.news].format(fence=event.fence), event.at)

    def name_of(self, pid: int) -> str:
        """Who has this process id; empty if nobody of ours."""
        return next((name for name in self._processes if self._pid(name) == pid), "")

    def _pid(self, name: str) -> int:
        return self._processes[name].pid or 0

    # Printing

    def narrate(self, text: str) -> None:
        print(f"\n{coloured(text, BOLD)}", flush=True)

    def say(self, who: str, text: str, at: float | None = None) -> None:
        seconds = (time.monotonic() if at is None else at) - self._began
        line = f"{seconds:6.2f} s  {who:<8} {text}"
        print(coloured(line, self._colours[who]) if who in self._colours else line, flush=True)


def coloured(text: str, code: int) -> str:
    """In colour on a terminal, unless the user wants none: https://no-color.org"""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{code}m{text}\033[0m"


def _perform(part: Part, url: str, line: Connection, curtain: threading.Barrier) -> None:
    # What the package would log is what the demo tells.
    logging.getLogger("celery_singleton_lock").addHandler(logging.NullHandler())
    _end_with_the_demo()
    curtain.wait()
    part(url, Demo(line))


def _end_with_the_demo() -> None:
    """Should the demo itself be killed, it cannot end its processes any more."""
    threading.Thread(target=_watch_the_demo, daemon=True).start()
    if sys.platform == "linux":
        # One that is stopped cannot watch: there the kernel does it.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _watch_the_demo() -> None:
    if demo := multiprocessing.parent_process():
        demo.join()
        os._exit(1)


@contextmanager
def _deaf_to_ctrl_c() -> Iterator[None]:
    """For children that are started here: Ctrl-C reaches all, but the demo alone acts on it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
