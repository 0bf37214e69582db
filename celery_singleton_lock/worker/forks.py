"""What has threads begins anew in a forked child.

The parent's threads are not in the child, what they serve is the parent's, and a lock may have been
held by a thread that is no more.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Final

_beginnings: Final[list[weakref.WeakMethod[Callable[[], None]]]] = []


def begin_in_children(begin: Callable[[], None]) -> None:
    """Call `begin`, a method, first thing in every forked child, as long as its object lives."""
    _beginnings[:] = [each for each in _beginnings if each() is not None]
    _beginnings.append(weakref.WeakMethod(begin))


def _begin_all() -> None:
    for each in tuple(_beginnings):
        if (begin := each()) is not None:
            begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_all)
