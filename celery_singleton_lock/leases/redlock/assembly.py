"""Whether the nodes can be asked: enough of them take part, and these remember."""

from __future__ import annotations

import time
from collections.abc import Callable

from celery_singleton_lock.core.errors import StoreUnavailable

from .incarnation import Token
from .nodes import Nodes
from .repair import Infirmary


class Assembly:
    """`on_memory_loss` is called when the nodes began anew since this process first met them."""

    def __init__(self, nodes: Nodes, infirmary: Infirmary, on_memory_loss: Callable[[], None]) -> None:
        self._nodes = nodes
        self._infirmary = infirmary
        self._on_memory_loss = on_memory_loss
        self._generation = ""
        self._settled: list[Token | None] | None = None
        """As all nodes were when all was well: as long as they are, there is nothing to look at."""

    @property
    def name(self) -> str:
        return " ".join(node.name for node in self._nodes.all)

    def look_around(self) -> None:
        """See to it that a majority takes part; found the quorum if this is its first use."""
        if self._nodes.tokens != self._settled and self._nodes.taking_part < self._nodes.size.majority:
            self._come_together()

    def look_back(self) -> None:
        """After the nodes were asked: notice what became of them, and have them repaired."""
        tokens = self._nodes.tokens
        if tokens == self._settled:
            return
        self.notice_generation()
        if self._nodes.has_some_out:
            self._infirmary.treat()
        self._settled = tokens if None not in tokens else None

    def notice_generation(self) -> None:
        newest = self._nodes.newest_generation
        if newest > self._generation:
            if self._generation:
                self._on_memory_loss()
            self._generation = newest

    def _come_together(self) -> None:
        """Wait until a majority takes part, but not for long: then the call fails and says why."""
        nodes, majority = self._nodes.all, self._nodes.size.majority
        give_up_at = time.monotonic() + 2 * self._nodes.timeout
        while True:
            asked = [node.number for node in nodes if node.token is None and not node.is_out]
            for number, channel in self._nodes.channels(asked).items():
                nodes[number].idle.append(channel)
            if self._nodes.taking_part >= majority:
                return
            # A process that has seen it work knows that this is no beginning.
            if (
                all(node.is_blank for node in nodes)
                and not self._generation
                and self._infirmary.found()
            ):
                return
            if self._nodes.has_some_out:
                self._infirmary.treat()
            if self._has_lost_majority or time.monotonic() > give_up_at:
                raise self.unavailable()
            time.sleep(0.02)

    @property
    def _has_lost_majority(self) -> bool:
        has_lost_all = bool(self._generation) and all(node.is_blank for node in self._nodes.all)
        return has_lost_all or self._infirmary.has_lost_majority

    def unavailable(self) -> StoreUnavailable:
        """Why the nodes cannot be asked, in words."""
        if self._has_lost_majority:
            return StoreUnavailable(
                self.name,
                "a majority of its nodes lost its memory, and nobody knows what was granted. When "
                "nobody is at work any more, say so: celery -A app singleton quorum accept-memory-loss",
            )
        troubles = self._nodes.troubles or "too few answered in time"
        return StoreUnavailable(
            self.name, f"no majority of its {len(self._nodes.all)} nodes: {troubles}"
        )
