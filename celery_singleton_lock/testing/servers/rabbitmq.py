"""One RabbitMQ server, with the port mapper that Erlang needs."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from .errors import ServerMissing
from .launch import Command
from .ports import free_port
from .process import Server

_REMEDY = "`apt install rabbitmq-server` (macOS: brew install rabbitmq)"

# What Debian puts on the PATH instead is a wrapper that changes the user and the directories.
_DEBIAN_SCRIPT = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")


class RabbitMQServer(Server):
    """The RabbitMQ of the system, without plugins, with its own data; the account is guest, guest.

    Durable queues with their confirmed persistent messages survive `kill`.
    """

    kind = "rabbitmq"
    startup_timeout_s = 60.0
    shutdown_timeout_s = 10.0

    def __init__(self) -> None:
        super().__init__()
        self._port_mapper = _PortMapper()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    def stop(self) -> None:
        super().stop()
        self._port_mapper.stop()

    def _launch(self) -> None:
        # Ours and no daemon: Erlang would start one that listens everywhere and outlives it.
        self._port_mapper.start()
        super()._launch()

    def _command(self) -> Command:
        # With input allowed, the start script becomes Erlang instead of its parent, so that our
        # signals, and the kernel's at our death, reach it. The input itself is not wanted.
        arguments = "-noinput -kernel inet_dist_use_interface {127,0,0,1}"
        return Command(
            [_find_server()],
            {
                "RABBITMQ_NODENAME": f"rabbit-{self.port}@localhost",
                "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
                "RABBITMQ_NODE_PORT": str(self.port),
                "RABBITMQ_DIST_PORT": str(free_port()),
                "RABBITMQ_ALLOW_INPUT": "true",
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": arguments,
                "RABBITMQ_MNESIA_BASE": str(self.data),
                "RABBITMQ_LOG_BASE": str(self.directory),
                "RABBITMQ_LOGS": "-",
                "RABBITMQ_PID_FILE": str(self.directory / "rabbitmq.pid"),
                # Files that do not exist, so that the system's are not read.
                "RABBITMQ_CONF_ENV_FILE": str(self.directory / "rabbitmq-env.conf"),
                "RABBITMQ_CONFIG_FILE": str(self.directory / "rabbitmq"),
                "RABBITMQ_ADVANCED_CONFIG_FILE": str(self.directory / "advanced"),
                "RABBITMQ_ENABLED_PLUGINS_FILE": str(self.directory / "enabled_plugins"),
                "HOME": str(self.directory),  # of the cookie
                "ERL_EPMD_PORT": str(self._port_mapper.port),
                "ERL_EPMD_ADDRESS": "127.0.0.1",
            },
        )

    def _is_ready(self) -> bool:
        return "Server startup complete" in self._log()


class _PortMapper(Server):
    kind = "epmd"

    @property
    def url(self) -> str:
        return f"epmd://127.0.0.1:{self.port}"

    def _command(self) -> Command:
        program = shutil.which("epmd")
        if program is None:
            raise ServerMissing("epmd", _REMEDY)
        return Command([program, "-port", str(self.port), "-address", "127.0.0.1"])

    def _is_ready(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port)).close()
        except OSError:
            return False
        return True


def _find_server() -> str:
    program = _DEBIAN_SCRIPT if _DEBIAN_SCRIPT.exists() else shutil.which("rabbitmq-server")
    if program is None:
        raise ServerMissing("rabbitmq-server", _REMEDY)
    return str(program)
