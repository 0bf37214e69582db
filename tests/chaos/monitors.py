"""What servers say of themselves, by MONITOR, and so without a word from the code under test: every
message that a Redis broker was given; every grant and recorded position of a Redis lease store."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from celery_singleton_lock.testing.servers import RedisServer

from .journal import Journal

_LINE: Final = re.compile(rb"^\+?(\d+\.\d+) \[\d+ [^\]]*\] (.*)$")
_WORD: Final = re.compile(rb'"((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(rb"\\(x[0-9a-f]{2}|.)")
QUEUE: Final = "celery"


class Monitor(threading.Thread):
    """Connects again when the server was away: what happened meanwhile is not seen; that is told."""

    def __init__(self, server: RedisServer, journal: Journal) -> None:
        super().__init__(name="monitor", daemon=True)
        self._server = server
        self._journal = journal
        self._is_over = threading.Event()
        self.is_watching = threading.Event()

    def stop(self) -> None:
        self._is_over.set()

    def run(self) -> None:
        while not self._is_over.is_set():
            with suppress(OSError):
                self._watch()
            self.is_watching.clear()
            self._is_over.wait(0.02)

    def _watch(self) -> None:
        with socket.create_connection(("127.0.0.1", self._server.port), timeout=1) as connection:
            connection.sendall(b"MONITOR\r\n")
            connection.settimeout(0.5)
            rest = b""
            while not self._is_over.is_set():
                with suppress(TimeoutError):
                    chunk = connection.recv(1 << 20)
                    if not chunk:
                        return
                    *lines, rest = (rest + chunk).split(b"\r\n")
                    for line in lines:
                        if line == b"+OK":
                            self._journal.write("monitoring", of=type(self).__name__)
                            self.is_watching.set()
                        elif (match := _LINE.match(line)) is not None:
                            self._see(float(match[1]), list(_words(match[2])))

    def _see(self, clock: float, words: list[str]) -> None:
        for what, facts in self.events(words):
            self._journal.write(what, clock=clock, **facts)

    def events(self, words: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        raise NotImplementedError


class BrokerMonitor(Monitor):
    def events(self, words: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        if words[0].upper() not in ("LPUSH", "RPUSH") or words[1] != QUEUE:
            return
        for text in words[2:]:
            message = json.loads(text)
            headers = message["headers"]
            about = message["properties"].get("delivery_info") or {}
            yield (
                "published",
                {
                    "run": headers["id"],
                    "entry": headers.get("singleton_entry"),
                    "slot": headers.get("singleton_slot"),
                    "attempt": (headers.get("retries") or 0) + 1,
                    "redelivered": bool(about.get("redelivered") or headers.get("redelivered")),
                },
            )


class StoreMonitor(Monitor):
    def events(self, words: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        if words[0].upper() != "HSET":
            return
        facts = dict(zip(words[2::2], words[3::2], strict=False))
        if {"owner", "fence", "since", "call"} <= facts.keys():
            yield "granted", {"key": words[1], "owner": facts["owner"], "fence": int(facts["fence"])}
        elif "position" in facts:
            yield "positioned", {"key": words[1], "position": int(facts["position"])}


def _words(text: bytes) -> Iterator[str]:
    for match in _WORD.finditer(text):
        yield _ESCAPED.sub(_unescape, match[1]).decode(errors="replace")


def _unescape(match: re.Match[bytes]) -> bytes:
    code = match[1]
    if code[:1] == b"x":
        return bytes([int(code[1:], 16)])
    return {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"a": b"\a", b"b": b"\b"}.get(code, code)
