"""Replicas of beat as processes: what they cost when nothing is due, and how late they are."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from redis import Redis

from celery_singleton_lock.testing.servers import RedisServer

from . import promises
from .chapters import NotMeasured
from .measure import Answer, against_bound

REPLICAS = 3
IDLE_ENTRIES = 10_000
BUSY_ENTRIES = 1_000

IDLE_CONFIG = f"""
    import time
    from celery.schedules import crontab

    month = 1 + (time.gmtime().tm_mon + 5) % 12
    app.conf.beat_schedule = {{
        f"entry {{number}}": {{"task": "bench.noop", "schedule": crontab(month_of_year=month)}}
        for number in range({IDLE_ENTRIES})
    }}
"""
# Periods of 30 to 90 seconds, all different: the slots are spread over time.
BUSY_CONFIG = f"""
    app.conf.beat_schedule = {{
        f"entry {{number}}": {{"task": "bench.noop", "schedule": 30 + 60 * number / {BUSY_ENTRIES}}}
        for number in range({BUSY_ENTRIES})
    }}
"""


def idle(seconds: float) -> Iterator[Answer | NotMeasured]:
    """The commands are those that all of them send, without what scripts call."""
    if not Path("/proc/self/stat").exists():
        yield NotMeasured(promises.IDLE_CPU.name, "there is no /proc")
        return
    with RedisServer() as locks, RedisServer() as broker, beats(IDLE_CONFIG, broker, locks) as pids:
        until_all_are_known(locks, IDLE_ENTRIES)
        time.sleep(2)  # the last of them has read its positions, too
        before, began = list(map(cpu_seconds, pids)), time.monotonic()
        commands = commands_of(locks, seconds)
        took = time.monotonic() - began
        shares = [100 * (cpu_seconds(pid) - was) / took for pid, was in zip(pids, before, strict=True)]
    yield against_bound(promises.IDLE_CPU, [max(shares)])
    yield against_bound(promises.IDLE_COMMANDS, [commands / took])


def dispatch_lag(seconds: float) -> Iterator[Answer]:
    """From the slot to the moment when a consumer has the message."""
    with RedisServer() as locks, RedisServer() as broker, beats(BUSY_CONFIG, broker, locks):
        until_all_are_known(locks, BUSY_ENTRIES)
        time.sleep(2)
        lags = lags_of(broker, seconds)
    yield against_bound(promises.LAG, [statistics.quantiles(lags, n=100)[-1]])


@contextmanager
def beats(
    config: str, broker: RedisServer, locks: RedisServer, count: int = REPLICAS
) -> Iterator[list[int]]:
    """Real ones, by the command line; their pids."""
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "proj.py").write_text(
            "from celery import Celery\n"
            f"app = Celery('bench', broker={broker.url!r})\n"
            f"app.conf.singleton_lock_url = {locks.url!r}\n" + textwrap.dedent(config)
        )
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "proj",
            "beat",
            "-S",
            "singleton",
            "--pidfile=",
        ]
        started: list[subprocess.Popen[bytes]] = []
        try:
            with on_all_cores():
                for _ in range(count):
                    started.append(
                        subprocess.Popen(
                            command,
                            cwd=place,
                            stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL,
                        )
                    )
            yield [process.pid for process in started]
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait(20)


@contextmanager
def on_all_cores() -> Iterator[None]:
    """Replicas live on hosts of their own: they should not share the one core of this process."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def until_all_are_known(locks: RedisServer, entries: int) -> None:
    client: Any = locks.connect()
    give_up_at = time.monotonic() + 120
    while client.dbsize() < entries:
        if time.monotonic() > give_up_at:
            raise TimeoutError("the replicas did not start")
        time.sleep(0.2)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def commands_of(server: RedisServer, seconds: float) -> int:
    """Without those that scripts call, and without our own."""
    mark = uuid.uuid4().hex
    with Redis.from_url(server.url) as ours, Redis.from_url(server.url, socket_timeout=None) as other:
        ours.ping()  # connecting takes commands, too
        watching: Any = other.monitor()
        end = threading.Timer(seconds, lambda: ours.echo(mark))
        count = 0
        with watching as monitor:
            end.start()
            while mark not in (seen := monitor.next_command())["command"]:
                count += seen["client_type"] != "lua"
        end.join()
    return count


def lags_of(broker: RedisServer, seconds: float) -> Sequence[float]:
    client: Any = broker.connect()
    client.delete("celery")
    lags, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        received = client.brpop("celery", timeout=1)
        now = time.time()
        if received:
            slot = json.loads(received[1])["headers"]["singleton_slot"]
            lags.append(now - datetime.fromisoformat(slot).timestamp())
    return lags
