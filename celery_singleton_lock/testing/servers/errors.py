"""What can go wrong when a real server is started.

RuntimeError
 +-- ServerMissing   the program is not on this machine
 +-- ServerFailed    the program was started and did not become ready
      +-- ServerNotPrepared    not even its data could be made
"""

from __future__ import annotations


class ServerMissing(RuntimeError):
    """A server's program cannot be found, or is built without a feature that was asked for."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what, remedy)
        self.what = what
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.what} is missing: {self.remedy}"


class ServerFailed(RuntimeError):
    """A server did not become ready; ``log`` holds the last lines that it wrote."""

    def __init__(self, server: str, reason: str, log: str) -> None:
        super().__init__(server, reason, log)
        self.server = server
        self.reason = reason
        self.log = log

    def __str__(self) -> str:
        return f"{self.server} {self.reason}; the end of its log:\n{self.log or '(empty)'}"

    @property
    def port_was_taken(self) -> bool:
        """Whether the server gave up because its port was in use."""
        log = self.log.lower()
        return "address already in use" in log or "eaddrinuse" in log


class ServerNotPrepared(ServerFailed):
    """The program that makes a server's data failed, or took too long."""
