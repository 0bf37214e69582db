"""Founding a quorum, repairing its nodes, beginning anew: the errands of `healing` on the network."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from redis.exceptions import RedisError

from celery_singleton_lock.leases.redis.names import Names
from celery_singleton_lock.leases.redis.scripts import Command, Script, Word, chunks, pack

from . import scripts
from .channel import Channel, Refusal, Reply
from .healing import Chore, Errand, Mending, found, repair
from .incarnation import Token, new_generation
from .node import Node
from .nodes import Nodes

logger = logging.getLogger(__name__)

RIGHT_MS: Final = 60_000
"""How long a repair may take before somebody else may try, if who began it died."""

EVERY: Final = 0.2
_JSON: Final = json.JSONDecoder()

Dump = list[tuple[bytes, tuple[Word, ...]]]
"""Keys, and what stands there, as a row for merge.lua."""


class CannotBeAsked(Exception):
    """A node did not answer, or refused."""


class Infirmary:
    """Takes nodes in and back. One thread at a time, while there is somebody to treat."""

    def __init__(self, nodes: Nodes, names: Names, key: bytes) -> None:
        self._nodes = nodes
        self._names = names
        self._key = key
        self._nurse: threading.Thread | None = None
        self._founding = threading.Lock()
        self._closed = threading.Event()
        self.has_lost_majority = False
        """Too few nodes are left that know what was granted: an operator must say what to do."""

    def close(self) -> None:
        self._closed.set()

    # Founding

    def found(self) -> bool:
        """Begin, if no node has ever taken part."""
        with self._founding:
            channels: dict[int, Channel] = {}
            try:
                return self._drive(found(self._nodes.size), channels, new_generation())
            finally:
                self._put_back(channels)

    def begin_anew(self) -> list[str]:
        """Accept that a majority lost its memory: put together what is left, and go on with that.
        Returns the nodes that take part. Raises `CannotBeAsked` if these would be no majority."""
        with self._founding:
            channels = self._survey()
            if len(channels) < self._nodes.size.majority:
                raise CannotBeAsked(self._nodes.troubles)
            generation = new_generation()
            try:
                if not self._claim_all(channels, scripts.SEIZE):
                    raise CannotBeAsked(self._nodes.troubles)
                dumps = [self._dump(node, channels[node.number], None) for node in self._of(channels)]
                for node in self._of(channels):
                    for dump in dumps:
                        self._fill(channels[node.number], dump)
                taken = [
                    node.name
                    for node in self._of(channels)
                    if self._admit(node, channels[node.number], self._ticket, generation)
                ]
            finally:
                self._put_back(channels)
            self.has_lost_majority = False
            if len(taken) < self._nodes.size.majority:
                raise CannotBeAsked(self._nodes.troubles)
            return taken

    def _of(self, channels: Mapping[int, Channel]) -> list[Node]:
        return [self._nodes.all[number] for number in channels]

    def _claim_all(self, channels: Mapping[int, Channel], script: Script) -> bool:
        """The first node first: who has that one is not disturbed by others who try the same."""
        self._ticket = os.urandom(8).hex()
        return all(self._claim(channels[number], script, self._ticket) for number in sorted(channels))

    def _survey(self) -> dict[int, Channel]:
        everyone = range(self._nodes.size.nodes)
        channels = self._nodes.channels(everyone, are_all_due=True, waits_for_all=True)
        for number, channel in list(channels.items()):
            try:
                self._nodes.all[number].survey(channel)
            except (OSError, RedisError) as error:
                self._nodes.all[number].failed(str(error))
                channels.pop(number).close()
        return channels

    def _put_back(self, channels: Mapping[int, Channel]) -> None:
        for number, channel in channels.items():
            self._nodes.all[number].idle.append(channel)

    # Repairing

    def treat(self) -> None:
        """See to it that nodes which are out are repaired, in a thread of its own."""
        nurse = self._nurse
        if nurse is not None and nurse.is_alive():
            return
        self._nurse = threading.Thread(target=self._go_round, name="quorum-repair", daemon=True)
        self._nurse.start()

    def _go_round(self) -> None:
        while not self._closed.is_set() and self._nodes.has_some_out:
            try:
                self._look_after_all()
            except (OSError, RedisError, CannotBeAsked) as error:
                logger.info("quorum_repair_failed reason=%s", error)
            self._closed.wait(EVERY)
        # Somebody else may have begun anew.
        self.has_lost_majority = False

    def _look_after_all(self) -> None:
        channels = self._survey()
        try:
            self._nodes.expel_older()
            intact = {
                node.number: str(node.token) for node in self._of(channels) if node.token is not None
            }
            forgot = [node for node in self._of(channels) if node.is_out]
            # If none has ever taken part, there was nothing to lose.
            is_new = not intact and all(node.is_blank for node in forgot)
            spare = self._nodes.size.nodes - self._nodes.size.donors
            self.has_lost_majority = len(forgot) > spare and not is_new
            for node in forgot:
                self._repair(node, channels, intact)
        finally:
            self._put_back(channels)

    def _repair(self, node: Node, channels: dict[int, Channel], intact: dict[int, str]) -> None:
        began = time.monotonic()
        mending = repair(self._nodes.size, node.number, intact)
        if self._drive(mending, channels, self._nodes.newest_generation):
            took = time.monotonic() - began
            logger.warning("quorum_node_repaired node=%s seconds=%.3f", node.name, took)

    def _drive(self, mending: Mending, channels: dict[int, Channel], generation: str) -> bool:
        """`channels` are those of the nodes that were surveyed. Whoever is admitted, is so into
        `generation`."""
        ticket = os.urandom(8).hex()
        answer: dict[int, Any] | None = None
        claimed: list[int] = []
        while True:
            try:
                errand = mending.send(answer)  # type: ignore[arg-type]
            except StopIteration as stop:
                if not stop.value:
                    # A donor was too slow, say. Otherwise nobody could try again for a minute.
                    self._renounce(claimed, channels, ticket)
                return bool(stop.value)
            if errand.chore is Chore.SURVEY:
                channels.update(self._survey())
                answer = {node.number: True for node in self._of(channels) if node.is_blank}
                continue
            answer = {}
            for number in errand.nodes:
                node, channel = self._nodes.all[number], channels[number]
                done = self._run(errand, node, channel, ticket, generation)
                if done:
                    answer[number] = done
            if errand.chore is Chore.CLAIM:
                claimed.extend(answer)

    def _renounce(self, claimed: Sequence[int], channels: Mapping[int, Channel], ticket: str) -> None:
        """Best effort: a right that cannot be given back runs out."""
        for number in claimed:
            try:
                _answers(channels[number], Command(scripts.RENOUNCE, [self._key], [(ticket,)]))
            except (OSError, RedisError, CannotBeAsked) as error:
                logger.info("quorum_right_not_renounced reason=%s", error)

    def _run(self, errand: Errand, node: Node, channel: Channel, ticket: str, generation: str) -> Any:
        try:
            if errand.chore is Chore.CLAIM:
                return self._claim(channel, scripts.CLAIM, ticket)
            if errand.chore is Chore.REFRESH:
                return self._refresh(node, channel, errand.under[node.number])
            if errand.chore is Chore.DUMP:
                return self._dump(node, channel, errand.under[node.number]) or [None]
            if errand.chore is Chore.FILL:
                self._fill(channel, [each for each in errand.cargo if each is not None], ticket)
                return True
            return self._admit(node, channel, ticket, generation)
        except (OSError, RedisError, CannotBeAsked) as error:
            logger.info("quorum_errand_failed node=%s reason=%s", node.name, error)
            return None

    # Errands

    def _claim(self, channel: Channel, script: Script, ticket: str) -> bool:
        row = (channel.run_id, ticket, RIGHT_MS, self._nodes.newest_generation)
        return _answers(channel, Command(script, [self._key], [row])) == [1]

    def _refresh(self, node: Node, channel: Channel, under: str) -> str | None:
        known = Token.read(under.encode())
        if known is None or known.run_id != channel.run_id:
            return None
        fresh = Token.new(known.run_id, known.generation)
        row = (under, str(fresh))
        if _answers(channel, Command(scripts.REFRESH, [self._key], [row])) != [1]:
            return None
        node.token = fresh
        return str(fresh)

    def _admit(self, node: Node, channel: Channel, ticket: str, generation: str) -> bool:
        token = Token.new(channel.run_id, generation)
        row = (ticket, str(token))
        if _answers(channel, Command(scripts.ADMIT, [self._key], [row])) != [1]:
            return False
        node.token, node.is_out, node.is_blank, node.trouble = token, False, False, ""
        return True

    def _dump(self, node: Node, channel: Channel, under: str | None) -> Dump:
        """All that the node knows; if `under` is None, in whatever incarnation."""
        guard: tuple[Word, ...] = (self._key, under or "")
        if under is None:
            guard = (self._key + b".repair", self._ticket)
        dump: Dump = []
        for names in self._scan(channel):
            kinds = [(name, kind) for name in names if (kind := self._kind_of(name))]
            if not kinds:
                continue
            keys = [name for name, _ in kinds]
            answers = _answers(channel, Command(scripts.DUMP, keys, [()] * len(keys), guard))
            threes = zip(*[iter(answers)] * 3, strict=True)
            for (name, kind), (now, kept_ms, inside) in zip(kinds, threes, strict=True):
                if inside:
                    dump.append((name, (kind, json.dumps(inside), now, kept_ms)))
        # What was removed from a book is understood only after its pages.
        dump.sort(key=lambda each: each[1][0] == "removed")
        return dump

    def _fill(self, channel: Channel, dump: Dump, ticket: str | None = None) -> None:
        right = (self._key + b".repair", ticket or self._ticket)
        for places in chunks(range(len(dump))):
            some = [dump[at] for at in places]
            command = Command(
                scripts.MERGE, [name for name, _ in some], [row for _, row in some], right
            )
            _answers(channel, command)

    def _scan(self, channel: Channel) -> Iterator[list[bytes]]:
        prefix = self._names.plain[:-1]
        for pattern in (*self._names.patterns(""), *group_patterns(prefix)):
            yield from scan_channel(channel, pattern)

    def _kind_of(self, name: bytes) -> str:
        """Empty for what is not carried over."""
        text = name.decode(errors="replace")
        if name in self._names.indexes:
            return "index"
        before, brace, after = text.rpartition("}")
        if brace and before.startswith(f"{self._names.plain[:-1]}.{{group."):
            return {"": "members", ".pages": "pages", ".order": "order", ".removed": "removed"}.get(
                after, ""
            )
        return "record"


def group_patterns(prefix: str) -> list[bytes]:
    escaped = "".join(f"\\{char}" if char in "*?[]\\^-" else char for char in prefix)
    return [f"{escaped}.{{group.*".encode(), f"{escaped}.list.{{*}}".encode()]


def scan_channel(channel: Channel, pattern: bytes) -> Iterator[list[bytes]]:
    cursor = b"0"
    while True:
        [reply] = channel.ask(pack([b"SCAN", cursor, b"MATCH", pattern, b"COUNT", b"200"]))
        if isinstance(reply, Refusal):
            raise CannotBeAsked(str(reply))
        cursor, names = reply
        if names:
            yield names
        if cursor == b"0":
            return


def _answers(channel: Channel, command: Command) -> list[Any]:
    [reply] = channel.ask(command.by_digest())
    if isinstance(reply, Refusal) and reply.startswith("NOSCRIPT"):
        [reply] = channel.ask(command.by_source())
    if isinstance(reply, Refusal):
        raise CannotBeAsked(str(reply))
    return read_values([reply])


def read_values(replies: Sequence[Reply]) -> list[Any]:
    """Of the scripts: the insides of JSON arrays, one after the other."""
    # Somebody else's record may hold what is no text.
    text = b",".join(replies).decode(errors="replace")
    values: list[Any] = _JSON.raw_decode(f"[{text}]")[0]
    return values
