"""Raises `LeaseLost` inside a body that runs on after its lease was lost. No Celery in it.

In a main thread by a signal, which also ends a sleep or a wait for a socket. In another thread between
two bytecodes only, so that one that waits in C is told when it comes back: best effort.
"""

from __future__ import annotations

import ctypes
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from celery_singleton_lock.core.errors import LeaseLost

logger = logging.getLogger(__name__)

_SIGNAL: Final = getattr(signal, "SIGUSR2", None)


class Abort:
    """Bounds the body of one execution; `now` may be called from any thread, at any time."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._thread: int | None = None
        self._by_signal = False
        self._loss: LeaseLost | None = None
        self._is_thrown = False

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Around the body, in its thread. Nothing is raised outside of it."""
        self._by_signal = _takes_signals()
        thread = self._thread = threading.get_ident()
        if self._by_signal:
            _in_main.append(self)
        try:
            yield
        finally:
            if self._by_signal:
                _in_main.remove(self)
            with self._changing:
                self._thread = None
                if self._is_thrown and not self._by_signal:
                    _throw(thread, None)

    def now(self, loss: LeaseLost) -> None:
        with self._changing:
            if self._thread is None or self._is_thrown:
                return
            self._loss, self._is_thrown = loss, True
            if self._by_signal and _SIGNAL is not None:
                signal.pthread_kill(self._thread, _SIGNAL)
            else:
                _throw(self._thread, _lost_type(loss))

    def _take_loss(self) -> LeaseLost | None:
        loss, self._loss = self._loss, None
        return loss


_in_main: Final[list[Abort]] = []


def _takes_signals() -> bool:
    """Whether this thread can be interrupted by our signal; sees to the handler."""
    if _SIGNAL is None or threading.current_thread() is not threading.main_thread():
        return False
    handler = signal.getsignal(_SIGNAL)
    if handler is signal.SIG_DFL:
        signal.signal(_SIGNAL, _on_signal)
        return True
    return handler is _on_signal  # else it is somebody's own


def _on_signal(_signum: int, _frame: FrameType | None) -> None:
    for abort in reversed(_in_main):
        loss = abort._take_loss()
        if loss is not None:
            raise loss


def _lost_type(loss: LeaseLost) -> type[LeaseLost]:
    """A class that can be raised without arguments, as the interpreter does it."""

    class LeaseLostHere(LeaseLost):
        def __init__(self, key: str = loss.key, fence: int = loss.fence) -> None:
            super().__init__(key, fence)

        def __reduce__(self) -> tuple[type[LeaseLost], tuple[str, int]]:
            return LeaseLost, (self.key, self.fence)

    LeaseLostHere.__name__ = LeaseLost.__name__
    return LeaseLostHere


def _throw(thread: int, kind: type[LeaseLost] | None) -> None:
    argument = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), argument)
