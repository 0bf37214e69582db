"""Free ports of 127.0.0.1 for servers that are killed and come back."""

from __future__ import annotations

import fcntl
import os
import random
import socket
from collections import deque
from functools import cache
from pathlib import Path

# Below the range that the kernel hands out to outgoing connections (32768 and up on Linux, 49152
# on macOS). In that range a client that reconnects while its server is down can be given the
# server's own port and talk to itself, and the server cannot come back.
_FIRST, _LAST = 10_240, 29_999

# Not seeded: test runners seed the global generator, and parallel runs would pick the same ports.
_random = random.SystemRandom()

# A port of a server that is down right now looks free, yet must not go to another server.
_handed_out: deque[int] = deque(maxlen=2_000)


def free_port() -> int:
    """A port that nothing listens on now, and that no other process is given here while this one lives.
    Whoever does not ask here may still take it before its use."""
    while True:
        port = _random.randint(_FIRST, _LAST)
        if port not in _handed_out and _is_ours(port) and _can_be_bound(port):
            _handed_out.append(port)
            return port


def _is_ours(port: int) -> bool:
    """Take the port for this process, among all that run tests at the same time."""
    try:
        # The byte of a file, whatever is in it: such a lock ends with its process, however that ends.
        fcntl.lockf(_register(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False
    return True


@cache
def _register(_process: int) -> int:
    # Not where TMPDIR says: whoever shares the ports of this machine must find the same file.
    path = Path("/tmp") / f"celery-singleton-lock-{os.getuid()}.ports"  # nosec B108 # no link is followed
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
