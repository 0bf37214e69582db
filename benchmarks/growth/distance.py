"""Servers that are farther away than this host: proxies that hold back what they answer.

They have a process of their own, or they would share Python's lock with the client that is measured.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.replicas import on_all_cores
from celery_singleton_lock.testing.servers import RedisServer, TcpProxy


class Distance:
    """The same servers, at `urls`; as far away as was last said."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.urls = [f"redis://127.0.0.1:{port}/0" for port in self._heard()]

    def set(self, milliseconds: float) -> None:
        if self._process.stdin is None:
            raise RuntimeError("there is nobody to tell")
        print(milliseconds / 1_000, file=self._process.stdin, flush=True)
        self._heard()

    def _heard(self) -> list[int]:
        if self._process.stdout is None or not (line := self._process.stdout.readline()):
            raise RuntimeError("the proxies have ended")
        ports: list[int] = json.loads(line)
        return ports


@contextmanager
def away(servers: Sequence[RedisServer]) -> Iterator[Distance]:
    with on_all_cores():
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.growth.distance", *(str(each.port) for each in servers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    try:
        yield Distance(process)
    finally:
        process.communicate()  # which closes what it reads: it ends


def main(ports: Sequence[int]) -> None:
    with ExitStack() as stack:
        proxies = [stack.enter_context(TcpProxy(port)) for port in ports]
        print(json.dumps([proxy.port for proxy in proxies]), flush=True)
        for line in sys.stdin:
            for proxy in proxies:
                proxy.delay(float(line))
            print("[]", flush=True)


if __name__ == "__main__":
    main([int(port) for port in sys.argv[1:]])
