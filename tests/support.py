"""What tests of several kinds share."""

from __future__ import annotations

import os
from typing import Protocol, TypeVar

import pytest

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
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI every server must be there: {missing}", pytrace=False)
        pytest.skip(str(missing))
    return server
