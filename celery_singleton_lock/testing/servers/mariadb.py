"""One MariaDB server."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .errors import ServerMissing
from .launch import Command
from .process import Server

_REMEDY = "`apt install mariadb-server` (macOS: brew install mariadb)"


class MariaDBServer(Server):
    """The MariaDB of the system, with its own data; root needs no password.

    Committed data survives `kill`: writes are left to the operating system, which lives on.
    """

    kind = "mariadb"

    @property
    def url(self) -> str:
        return f"mysql+pymysql://root@127.0.0.1:{self.port}/test?charset=utf8mb4"

    def _create_data(self) -> None:
        tool = _find("mariadb-install-db", "mysql_install_db")
        # Otherwise root may log in by the unix socket only.
        password_login = "--auth-root-authentication-method=normal"  # nosec B105 # an option
        self._run_tool(
            Command([tool, *self._common_arguments(), password_login, "--skip-name-resolve"])
        )

    def _command(self) -> Command:
        return Command(
            [
                _find("mariadbd", "mysqld"),
                *self._common_arguments(),
                "--bind-address=127.0.0.1",
                f"--port={self.port}",
                f"--socket={self.directory / 'mysql.sock'}",
                f"--pid-file={self.directory / 'mysql.pid'}",
                f"--tmpdir={self.directory}",
                "--skip-name-resolve",
                "--character-set-server=utf8mb4",
                "--max-connections=200",
                "--innodb-flush-log-at-trx-commit=2",
                "--innodb-buffer-pool-size=32M",
            ]
        )

    def _is_ready(self) -> bool:
        # A look by TCP would count as a failed login, and too many of these block the host.
        return "ready for connections" in self._log()

    def _common_arguments(self) -> list[str]:
        # Waiting for the disk is most of the time it takes; "loose" if another version knows not.
        no_sync = ["--loose-innodb-flush-method=nosync", "--loose-debug-no-sync"]
        arguments = ["--no-defaults", f"--datadir={self.data}", *no_sync]
        if os.geteuid() == 0:
            arguments.append("--user=root")  # refused unless asked for
        return arguments


def _find(*names: str) -> str:
    # Servers live in sbin, which an ordinary user's PATH leaves out.
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    for name in names:
        if found := shutil.which(name, path=path):
            return str(Path(found).absolute())
    raise ServerMissing(names[0], _REMEDY)
