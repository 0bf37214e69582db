"""What tests of several kinds share."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn, Protocol, TypeVar

import pytest
from hypothesis import settings as hypothesis_settings

from celery_singleton_lock.testing.servers import ServerMissing


class _Startable(Protocol):
    def start(self) -> object: ...

    def stop(self) -> None: ...


Started = TypeVar("Started", bound=_Startable)


def start_or_skip(server: Started) -> Started:
    """Start ``server``; if its program is missing, skip the test here and fail it in CI.

    The reason names the program and how to get it, and is shown at the end of the run.
    """
    try:
        server.start()
    except ServerMissing as missing:
        skip_or_fail(str(missing))
    return server


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test here, and fail it in CI, because something is not installed."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"in CI everything must be there: {reason}", pytrace=False)
    pytest.skip(reason)


def let_it_tell(process: subprocess.Popen[bytes]) -> None:
    """Before a test kills what is left of its processes. Where coverage is measured, a process that is
    killed does not tell what it did: there it is asked to end, and waited for."""
    if "COVERAGE_PROCESS_CONFIG" not in os.environ:
        return
    for number in (signal.SIGCONT, signal.SIGTERM, signal.SIGQUIT):
        if process.poll() is None:
            process.send_signal(number)
            if number != signal.SIGCONT:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(5)


def examples(part: float) -> hypothesis_settings:
    """That part of the examples which the profile of hypothesis asks for."""
    profile = hypothesis_settings()
    return hypothesis_settings(profile, max_examples=max(1, round(profile.max_examples * part)))


def wrong_clock(offset: str) -> dict[str, str]:
    """The environment of a process whose clock is wrong, by an offset such as ``-120s``."""
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not libraries:
        skip_or_fail("libfaketime is missing: apt-get install libfaketime")
    return {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME": offset,
    }


def until(fact: Callable[[], Any], within: float = 30.0) -> Any:
    """Wait for something to be true, and return it."""
    give_up_at = time.monotonic() + within
    while not (found := fact()):
        assert time.monotonic() < give_up_at, "did not happen in time"
        time.sleep(0.05)
    return found
