"""Several servers that are one to their clients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import ClassVar, Self

from .errors import ServerFailed
from .process import Server
from .waiting import holds_within

_LOG_LINES_SHOWN_EACH = 8


class ServerGroup(ABC):
    """The verbs of `Server`, for all members together; members may also be hurt one by one."""

    kind: ClassVar[str]
    ready_timeout_s: ClassVar[float] = 30.0

    @property
    @abstractmethod
    def members(self) -> Sequence[Server]:
        """Every server, in the order in which they are started."""

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect."""

    @abstractmethod
    def _await_ready(self) -> None:
        """Return when the members, all running, have become one. Raises `ServerFailed`."""

    @property
    def pids(self) -> list[int]:
        """The process ids of the members that run."""
        return [member.pid for member in self.members if member.running]

    def start(self) -> Self:
        """Start every member that is down, and return when the group serves clients.

        A group that cannot be made whole is stopped. Raises `ServerMissing` or `ServerFailed`.
        """
        try:
            for member in self.members:
                member.start()
            self._await_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End every member and remove its data; in any state, any number of times."""
        for member in reversed(self.members):
            member.stop()

    def kill(self) -> None:
        """End every member by SIGKILL; keep ports and data."""
        for member in self.members:
            member.kill()

    def pause(self) -> None:
        """Freeze every member that runs."""
        for member in self._running():
            member.pause()

    def resume(self) -> None:
        """Let every member that runs go on."""
        for member in self._running():
            member.resume()

    def restart(self, keep_data: bool = True) -> None:
        """Bring every member down, then all up again, on the same ports."""
        # All down before the first comes up: those left would take it for a failure of the rest.
        for member in reversed(self.members):
            member.shut_down()
        if not keep_data:
            for member in self.members:
                member.erase()
        self.start()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _running(self) -> list[Server]:
        return [member for member in self.members if member.running]

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        if not holds_within(self.ready_timeout_s, condition):
            logs = (f"{m!r}\n{m.log_tail(_LOG_LINES_SHOWN_EACH)}" for m in self._running())
            reason = f"waited {self.ready_timeout_s:g} s in vain for {what}"
            raise ServerFailed(self.kind, reason, "\n".join(logs))
