"""Free ports of 127.0.0.1 for servers that are killed and come back."""

from __future__ import annotations

import random
import socket
from collections import deque

# Below the range that the kernel hands out to outgoing connections (32768 and up on Linux, 49152
# on macOS). In that range a client that reconnects while its server is down can be given the
# server's own port and talk to itself, and the server cannot come back.
_FIRST, _LAST = 10_240, 29_999

# Not seeded: test runners seed the global generator, and parallel runs would pick the same ports.
_random = random.SystemRandom()

# A port of a server that is down right now looks free, yet must not go to another server.
_handed_out: deque[int] = deque(maxlen=2_000)


def free_port() -> int:
    """A port that nothing listens on now; another process may still take it before its use."""
    while True:
        port = _random.randint(_FIRST, _LAST)
        if port not in _handed_out and _can_be_bound(port):
            _handed_out.append(port)
            return port


def _can_be_bound(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
