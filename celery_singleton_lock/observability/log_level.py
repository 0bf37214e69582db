"""The level of our log lines, changed while a process runs, in it and in the children of its pool."""

from __future__ import annotations

import logging
import mmap
import struct
from typing import Any, Final

from celery.signals import task_prerun

from .log_lines import PACKAGE

COMMAND: Final = "singleton_log_level"
_LEVEL: Final = struct.Struct("i")


class LevelSwitch:
    """Shared with the children that are forked after it was made. They look before each task."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _LEVEL.size)
        self._seen = 0

    def turn(self, level: int) -> None:
        self._shared[:] = _LEVEL.pack(level)
        self.look()

    def look(self, **_: Any) -> None:
        (level,) = _LEVEL.unpack(self._shared[:])
        if level != self._seen:
            self._seen = level
            logging.getLogger(PACKAGE).setLevel(level)


_switches: Final[list[LevelSwitch]] = []


def prepare() -> None:
    """Call it before forking. Twice is once."""
    if not _switches:
        _switches.append(LevelSwitch())
        task_prerun.connect(_switches[0].look, weak=False, dispatch_uid=COMMAND)


def set_level(_state: Any, level: str, **_: Any) -> dict[str, str]:
    """The remote-control command, of workers and beats."""
    number = logging.getLevelNamesMapping().get(str(level).upper())
    if not number:
        return {"error": f"no level of logging is called {level!r}"}
    prepare()
    _switches[0].turn(number)
    return {"ok": f"the log level is {str(level).upper()}"}
