"""What else the figures depend on: told with each of them."""

from __future__ import annotations

import os
import platform
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import celery_singleton_lock
from celery_singleton_lock.testing.servers import RedisServer

from .chapters import Pace

PACKAGES: Final = (
    "celery", "kombu", "redis", "hiredis", "SQLAlchemy", "celery-redbeat", "django-celery-beat",
    "celery-singleton", "celery-once", "celery-heimdall", "pottery", "redlock-py",
)  # fmt: skip


def environment(pace: Pace) -> dict[str, Any]:
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "run": pace,
        "celery-singleton-lock": celery_singleton_lock.__version__,
        "python": platform.python_version(),
        "valkey": _valkey(),
        "system": platform.platform(terse=True),
        "processor": _processor(),
        "cores": os.cpu_count(),
        # Of who else is at work: a figure of a busy machine is to be told from one of a quiet one.
        "load": round(os.getloadavg()[0], 1),
        "packages": {name: version for name in PACKAGES if (version := version_of(name))},
    }


def in_a_line(known: dict[str, Any]) -> str:
    packages = known["packages"]
    return " · ".join(
        f"{name} {value}" for name, value in ({**known, "packages": None} | packages).items() if value
    )


def stay_on_one_core() -> None:
    """With the servers started from here, where the system knows how.

    Otherwise every reply may have to wake another core. That takes longer than a lease, and is in
    both sides of a ratio: on an idle machine all ratios would look better than they are.
    """
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def version_of(package: str) -> str | None:
    """None: it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _valkey() -> str:
    with RedisServer() as server, server.connect() as client:
        info: Any = client.info("server")
    return str(info["valkey_version"])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or sys.platform
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
