"""The terminal as a canvas: another screen, keys without Enter, and all as before at the end."""

from __future__ import annotations

import os
import select
import shutil
import signal
import sys
import termios
import time
import tty
from collections.abc import Sequence
from types import FrameType
from typing import Any, Final

_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_HOME: Final = "\x1b[H"
_TO_END_OF_LINE: Final = "\x1b[K"
_BELOW: Final = "\x1b[J"


class Terminal:
    """Whatever ends the block, also SIGTERM and Ctrl-C, the terminal is as it was."""

    def __enter__(self) -> Terminal:
        self._modes = termios.tcgetattr(sys.stdin)
        # Ctrl-C must end it also where a shell has told its children to ignore that.
        handlers = {signal.SIGTERM: _leave, signal.SIGINT: signal.default_int_handler}
        self._handlers = {number: signal.signal(number, each) for number, each in handlers.items()}
        tty.setcbreak(sys.stdin)
        sys.stdout.write(_ENTER)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._modes)
        sys.stdout.write(_LEAVE)
        sys.stdout.flush()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        # To end it so is how it is meant to be ended.
        return kind is KeyboardInterrupt

    @property
    def size(self) -> os.terminal_size:
        return shutil.get_terminal_size()

    def show(self, lines: Sequence[str]) -> None:
        # In one write, over what was there: a screen that is cleared first flickers.
        text = f"{_TO_END_OF_LINE}\r\n".join(lines)
        sys.stdout.write(f"{_HOME}{text}{_TO_END_OF_LINE}{_BELOW}")
        sys.stdout.flush()

    def key_within(self, seconds: float) -> str:
        """The key that is pressed; empty if there is none in that time."""
        give_up_at = time.monotonic() + seconds
        while (left := give_up_at - time.monotonic()) > 0:
            try:
                if not select.select([sys.stdin], [], [], left)[0]:
                    return ""
            except InterruptedError:  # the window has another size
                return ""
            return os.read(sys.stdin.fileno(), 1).decode(errors="replace") or "q"
        return ""


def _leave(_number: int, _frame: FrameType | None) -> Any:
    raise SystemExit(128 + signal.SIGTERM)
