"""What can be said of the nodes, for people: `doctor` prints it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from celery_singleton_lock.leases.redis.scripts import pack

from .channel import Channel, Refusal
from .node import Node

CLOCKS_APART: Final = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. All but `name`, `takes_part` and `trouble` is None of one that does not answer.

    `lag`: how long it took to answer. `clock_offset`: how far its clock is ahead of this host's.
    `trouble`: why it does not take part; empty if it does.
    """

    name: str
    takes_part: bool
    trouble: str
    lag: timedelta | None = None
    run_id: str | None = None
    generation: str | None = None
    role: str | None = None
    has_append_only_file: bool | None = None
    has_snapshots: bool | None = None
    may_evict: bool | None = None
    clock_offset: timedelta | None = None

    @property
    def answers(self) -> bool:
        return self.lag is not None


def facts_of(node: Node, channel: Channel | None, newest_generation: str) -> NodeFacts:
    """Raises `OSError` and redis-py's errors. No channel: the node could not be reached."""
    if channel is None:
        return NodeFacts(node.name, False, node.trouble)
    node.survey(channel)
    asked_at = time.time()
    began = time.monotonic()
    [told] = channel.ask(pack([b"TIME"]))
    took = time.monotonic() - began
    info = _info(channel)
    policy = info.get("maxmemory_policy", "noeviction")
    return NodeFacts(
        node.name,
        node.token is not None and node.token.generation >= newest_generation,
        node.trouble,
        lag=timedelta(seconds=took),
        run_id=channel.run_id,
        generation=node.token.generation if node.token else None,
        role=info.get("role"),
        has_append_only_file=info.get("aof_enabled") == "1",
        has_snapshots=_has_snapshots(channel),
        may_evict=policy != "noeviction" and int(info.get("maxmemory", 0)) > 0,
        clock_offset=timedelta(seconds=int(told[0]) + int(told[1]) / 1e6 - asked_at - took / 2),
    )


def _info(channel: Channel) -> dict[str, str]:
    sections = (b"replication", b"persistence", b"memory")
    replies = channel.ask(b"".join(pack([b"INFO", name]) for name in sections), len(sections))
    lines = [
        line.decode(errors="replace").partition(":")
        for reply in replies
        if not isinstance(reply, Refusal)
        for line in reply.splitlines()
    ]
    return {name: value for name, _, value in lines}


def _has_snapshots(channel: Channel) -> bool | None:
    """None: the server does not tell."""
    [reply] = channel.ask(pack([b"CONFIG", b"GET", b"save"]))
    return None if isinstance(reply, Refusal) or len(reply) < 2 else bool(reply[1])


def remarks_on(facts: Sequence[NodeFacts]) -> list[str]:
    """What a person should look at, in words; nothing if all is well."""
    remarks = []
    count, majority = len(facts), len(facts) // 2 + 1
    if count % 2 == 0:
        remarks.append(
            f"{count} nodes bear the loss of {count - majority}, as {count - 1} do: use an odd number"
        )
    for run_id, times in Counter(each.run_id for each in facts if each.run_id).items():
        if times > 1:
            names = ", ".join(each.name for each in facts if each.run_id == run_id)
            remarks.append(f"these are one server, which has {times} votes: {names}")
    taking_part = sum(each.takes_part for each in facts)
    if taking_part < majority:
        remarks.append(f"only {taking_part} of {count} nodes take part, and {majority} are needed")
    for each in facts:
        remarks += [f"{each.name}: {remark}" for remark in _remarks_on_one(each)]
    offsets = [each.clock_offset for each in facts if each.clock_offset is not None]
    if offsets and max(offsets) - min(offsets) > CLOCKS_APART:
        apart = (max(offsets) - min(offsets)).total_seconds()
        remarks.append(f"the clocks of the nodes are {apart:.1f} s apart: run NTP on them")
    return remarks


def _remarks_on_one(node: NodeFacts) -> list[str]:
    remarks = []
    if not node.takes_part:
        remarks.append(f"does not take part: {node.trouble}")
    if node.role not in (None, "master"):
        remarks.append("is a replica: name independent masters, each once")
    if node.may_evict:
        remarks.append("may throw leases away when its memory is full: set maxmemory-policy noeviction")
    return remarks
