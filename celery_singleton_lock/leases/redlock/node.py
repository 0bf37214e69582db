"""One node: what is known of it, and the kept connections to it."""

from __future__ import annotations

import logging
import random
import select
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from redis.exceptions import RedisError

from celery_singleton_lock.leases.redis.links import Connection
from celery_singleton_lock.leases.redis.scripts import pack

from .channel import Channel, Refusal
from .incarnation import Token

logger = logging.getLogger(__name__)

MOST_OWED: Final = 1000
LONGEST_REST: Final = 2.0
FORGOT: Final = "it lost its memory, and is not repaired yet"
BLANK: Final = "it is new, or lost all its memory, and is not repaired yet"


@dataclass(slots=True)
class Node:
    number: int
    name: str
    connect: Callable[[], Connection]
    key: bytes
    """Where its incarnation is kept."""
    token: Token | None = None
    """The incarnation in which it takes part, as far as is known; None: it does not, or is unknown."""
    is_out: bool = False
    """It answers, and must not take part: it has lost its memory."""
    is_blank: bool = False
    """It is out, and has never taken part, or has forgotten that it did."""
    trouble: str = "not asked yet"
    failures: int = 0
    next_try: float = 0.0
    idle: list[Channel] = field(default_factory=list)

    def open(self) -> Channel:
        connection = self.connect()
        connection.connect()
        channel = Channel(connection)
        try:
            self.survey(channel)
        except BaseException:
            channel.close()
            raise
        return channel

    def survey(self, channel: Channel) -> Token | None:
        """Learn whether the node takes part, and in which incarnation. Waits for it."""
        [kept] = channel.ask(pack([b"GET", self.key]))
        if isinstance(kept, Refusal):
            raise ConnectionError(kept)
        if not channel.run_id:
            raise ConnectionError("the server does not tell its run id: allow +info to this user")
        token = Token.read(kept)
        is_in = token is not None and token.run_id == channel.run_id
        self.is_blank = token is None
        self.token, self.is_out = (token if is_in else None), not is_in
        self.trouble = "" if is_in else BLANK if token is None else FORGOT
        return self.token

    def take_idle(self, pid: int, patience: float) -> Channel | None:
        """A kept connection of this process; None if there is none that answers."""
        while True:
            try:
                channel = self.idle.pop()
            except IndexError:  # none is left, or another thread was quicker
                return None
            # A forked child inherits its parent's, and must not speak on them.
            if channel.pid != pid:
                continue
            is_late = channel.owed and time.monotonic() - channel.owing_since > patience
            if is_late and not self._catches_up(channel):
                continue
            return channel

    def keep(self, channel: Channel) -> None:
        if channel.owed > MOST_OWED:
            channel.close()
            self.failed("it does not answer")
        else:
            self.idle.append(channel)

    def _catches_up(self, channel: Channel) -> bool:
        try:
            while channel.owed and _is_readable(channel):
                channel.receive()
        except (OSError, RedisError):
            channel.owed = MOST_OWED
        if channel.owed:
            channel.close()
            self.failed("it does not answer")
        return not channel.owed

    def failed(self, reason: str) -> None:
        if not self.failures:
            logger.warning("quorum_node_away node=%s reason=%s", self.name, reason)
        self.failures += 1
        self.trouble = reason
        rest = min(LONGEST_REST, 0.05 * 2 ** min(self.failures, 10))
        self.next_try = time.monotonic() + rest * random.uniform(0.5, 1.0)  # nosec B311 # noqa: S311 - jitter

    def answered(self) -> None:
        if self.failures:
            logger.info("quorum_node_back node=%s", self.name)
            self.failures = 0
            self.trouble = ""

    def close(self) -> None:
        while self.idle:
            self.idle.pop().close()


def _is_readable(channel: Channel) -> bool:
    poller = select.poll()
    poller.register(channel.fd, select.POLLIN)
    return bool(poller.poll(0))
