"""A small HTTP server for probes and scrapes, in a thread of its own."""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, NamedTuple

logger = logging.getLogger(__name__)

AT_ONCE: Final = 8
"""Requests that are answered at a time; more are turned away."""
PATIENCE_S: Final = 5.0
"""For a client that does not send its request, or does not read its answer."""
TRY_AGAIN_S: Final = 5.0


class Answer(NamedTuple):
    status: HTTPStatus
    content_type: str
    body: bytes


Page = Callable[[str], Answer]
"""Called with the Accept header of the request."""


class StatusServer:
    """Serves pages by their paths, for GET and HEAD only.

    An address that is taken is tried again until it is free: what was there before may be on its way
    out, and monitoring must not keep a replica from its work.
    """

    def __init__(self, address: str, pages: Mapping[str, Page]) -> None:
        host, _, port = address.rpartition(":")
        self._host, self._port = host.strip("[]"), int(port)
        self._pages = pages
        self._server: _Server | None = None
        self._stopping = threading.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="singleton-http", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return when the address is free; at most after `PATIENCE_S`."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(PATIENCE_S)

    @property
    def port(self) -> int | None:
        """Where it listens; None: nowhere yet."""
        return self._server.server_address[1] if self._server is not None else None

    def wait_until_bound(self, timeout_s: float) -> bool:
        return self._bound.wait(timeout_s)

    def _serve(self) -> None:
        server = self._bind()
        if server is None:
            return
        self._server = server
        self._bound.set()
        logger.info("http_serving host=%s port=%d", self._host, self.port)
        with server:
            # Not serve_forever: to end that before it has begun would wait for ever.
            while not self._stopping.is_set():
                server.handle_request()

    def _bind(self) -> _Server | None:
        is_told = False
        while not self._stopping.is_set():
            try:
                return _Server(self._host, self._port, self._pages)
            except OSError as error:
                if not is_told:
                    logger.warning(
                        "http_not_served host=%s port=%d reason=%s: no probe or scrape is answered; it "
                        "is tried again. Each process needs an address of its own: see singleton_http",
                        self._host, self._port, error,
                    )  # fmt: skip
                is_told = True
            self._stopping.wait(TRY_AGAIN_S)
        return None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # Not while somebody else listens; but at once after a restart.
    allow_reuse_address = True
    request_queue_size = 16
    # How long `handle_request` waits for one.
    timeout = 0.2

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        if ":" in host:
            self.address_family = socket.AF_INET6
        self.pages = pages
        self._free = threading.BoundedSemaphore(AT_ONCE)
        super().__init__((host, port), _Handler)
        _close_in_children(self)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for the name of the host, which may take a while.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("http_request_failed", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = PATIENCE_S
    server_version = "celery-singleton-lock"
    sys_version = ""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        if page is None:
            known = ", ".join(sorted(self.server.pages))
            self._send(plain(HTTPStatus.NOT_FOUND, f"there are {known}\n"))
            return
        try:
            answer = page(self.headers.get("Accept", ""))
        except Exception as error:
            logger.exception("http_page_failed path=%s", path)
            answer = plain(HTTPStatus.INTERNAL_SERVER_ERROR, f"{type(error).__name__}: see the log\n")
        self._send(answer)

    def do_HEAD(self) -> None:
        self.do_GET()

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the standard library's
        logger.debug("http_request line=%r", format % args)


def plain(status: HTTPStatus, text: str) -> Answer:
    return Answer(status, "text/plain; charset=utf-8", text.encode())


def _close_in_children(server: _Server) -> None:
    """A child of the pool must not keep the port when its parent is gone."""
    its = weakref.ref(server)

    def close() -> None:
        if (server := its()) is not None:
            server.socket.close()

    os.register_at_fork(after_in_child=close)
