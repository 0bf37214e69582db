"""Starting a child that dies with this process, however this process dies."""

from __future__ import annotations

import os
import signal
import subprocess  # nosec B404 # no shell, and no words of others
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

from .process_tree import descendants, send_signal

# Run by a fresh interpreter that then becomes the server, so its pid stays. A preexec_fn would do
# the same inside a fork of a process with threads, which may deadlock and warns since 3.12.
_BECOME_SERVER = """
import ctypes, os, signal, sys
parent, uid, gid, *argv = sys.argv[1:]
prctl, PR_SET_PDEATHSIG = ctypes.CDLL(None).prctl, 1
if uid != str(os.getuid()):
    os.setgroups([])
    os.setgid(int(gid))
    os.setuid(int(uid))
prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # a change of user clears it: not earlier
if os.getppid() != int(parent):
    os._exit(1)  # the parent was gone before prctl
signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two, and exec passes it on
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
os.execv(argv[0], argv)
"""


@dataclass(frozen=True)
class Command:
    """A program with an absolute path, and how it is to run."""

    argv: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    """Whom to become first; None stays the present user."""


def launch(command: Command, *, log: Path, directory: Path) -> subprocess.Popen[bytes]:
    """Start ``command``; its output is appended to ``log``.

    On Linux the kernel kills the child as soon as this process is gone. Elsewhere a child
    survives a parent that was killed with SIGKILL.
    """
    future: Future[subprocess.Popen[bytes]] = Future()
    _thread_of_this_process().requests.put((future, command, log, directory))
    return future.result()


def run(command: Command, *, log: Path, directory: Path, timeout_s: float) -> int:
    """Run ``command`` to its end, killing it at the timeout, and return its exit status."""
    process = launch(command, log=log, directory=directory)
    try:
        return process.wait(timeout_s)
    except BaseException:
        send_signal([process.pid, *descendants(process.pid)], signal.SIGKILL)
        process.wait()
        raise


class _LaunchingThread(threading.Thread):
    """Starts every child, and lives as long as the process.

    The kernel sends the death signal when the *thread* that forked ends. Were children started
    by their callers, a server started in a short-lived thread would die with that thread.
    """

    def __init__(self) -> None:
        super().__init__(name="server-launcher", daemon=True)
        self.requests: SimpleQueue[tuple[Future[subprocess.Popen[bytes]], Command, Path, Path]] = (
            SimpleQueue()
        )

    def run(self) -> None:
        while True:
            future, command, log, directory = self.requests.get()
            try:
                future.set_result(_popen(command, log, directory))
            except BaseException as error:  # noqa: BLE001 - the caller gets it, the thread goes on
                future.set_exception(error)


# By pid, because a forked child inherits the entry but not the thread.
_threads: dict[int, _LaunchingThread] = {}


def _thread_of_this_process() -> _LaunchingThread:
    fresh = _LaunchingThread()
    thread = _threads.setdefault(os.getpid(), fresh)
    if thread is fresh:
        thread.start()
    return thread


def _popen(command: Command, log: Path, directory: Path) -> subprocess.Popen[bytes]:
    uid, gid = _ids(command.user)
    argv = list(command.argv)
    if sys.platform == "linux":
        # The interpreter changes the user itself: the other user may not be allowed to run it.
        become = [sys.executable, "-I", "-S", "-c", _BECOME_SERVER, os.getpid(), uid, gid]
        argv = [*map(str, become), *argv]
        uid, gid = _ids(None)
    with log.open("ab") as output:
        return subprocess.Popen(  # nosec B603 # the command is the server's
            argv,
            cwd=directory,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            user=uid if uid != os.getuid() else None,
            group=gid if uid != os.getuid() else None,
            # Ctrl-C in a terminal must reach the tests, which then stop their servers in order.
            start_new_session=True,
        )


def _ids(user: str | None) -> tuple[int, int]:
    if user is None:
        return os.getuid(), os.getgid()
    import pwd

    account = pwd.getpwnam(user)
    return account.pw_uid, account.pw_gid
