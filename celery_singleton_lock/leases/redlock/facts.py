"""What can be said of the nodes, for people: `celery singleton quorum status` prints it.

::

    facts = store.node_facts()          # of a RedlockLeaseStore; changes nothing
    for remark in remarks_on(facts):    # what a person should look at, one line each
        print(remark)
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from redis.exceptions import RedisError

from celery_singleton_lock.leases.redis.scripts import pack

from .channel import Channel, Refusal
from .node import Node
from .nodes import Nodes
from .rounds import Size

CLOCKS_APART: Final = timedelta(seconds=1)
NEW: Final = "no node has taken part yet, or all forgot that they did: they begin with the first use"


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One node. All but `name`, `takes_part` and `trouble` is None of one that does not answer.

    `lag`: how long it took to answer. `clock_offset`: how far its clock is ahead of this host's.
    `trouble`: why it does not take part; empty if it does. `is_blank`: it has never taken part, or has
    forgotten that it did. `run_id` and `generation` are its incarnation. `has_snapshots` is None, too,
    where the server does not tell its settings.
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
    is_blank: bool | None = None

    @property
    def answers(self) -> bool:
        return self.lag is not None

    @property
    def state(self) -> str:
        """In one word: in, out (lost its memory), new, or away."""
        if self.takes_part:
            return "in"
        return "away" if not self.answers else "new" if self.is_blank else "out"

    @property
    def facts(self) -> dict[str, Any]:
        """For JSON; spans in seconds."""
        return {
            "name": self.name,
            "state": self.state,
            "trouble": self.trouble,
            "lag_seconds": _seconds(self.lag),
            "run_id": self.run_id,
            "generation": self.generation,
            "role": self.role,
            "has_append_only_file": self.has_append_only_file,
            "has_snapshots": self.has_snapshots,
            "may_evict": self.may_evict,
            "clock_offset_seconds": _seconds(self.clock_offset),
        }


def facts_of_all(nodes: Nodes) -> list[NodeFacts]:
    """What each node says of itself now. Nodes are asked, and not changed."""
    channels = nodes.channels(range(len(nodes.all)), are_all_due=True, waits_for_all=True)
    facts = []
    for node in nodes.all:
        channel = channels.get(node.number)
        try:
            facts.append(facts_of(node, channel, nodes.newest_generation))
        except (OSError, RedisError) as error:
            node.failed(str(error))
            facts.append(facts_of(node, None, ""))
            if channel is not None:
                channel.close()
        else:
            if channel is not None:
                node.idle.append(channel)
    nodes.expel_older()
    return facts


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
        is_blank=node.is_blank,
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


def is_new(facts: Sequence[NodeFacts]) -> bool:
    """Whether no node has ever taken part, or all have forgotten that they did."""
    return all(each.is_blank for each in facts)


def has_lost_majority(facts: Sequence[NodeFacts]) -> bool:
    """Whether too few nodes are left that know what was granted: a person must say what to do."""
    size = Size(len(facts))
    forgot = sum(each.answers and not each.takes_part for each in facts)
    return forgot > size.nodes - size.donors and not is_new(facts)


def remarks_on(facts: Sequence[NodeFacts]) -> list[str]:
    """What a person should look at, in words; nothing if all is well."""
    remarks = []
    count, majority = len(facts), Size(len(facts)).majority
    if count % 2 == 0:
        remarks.append(
            f"{count} nodes bear the loss of {count - majority}, as {count - 1} do: use an odd number"
        )
    for run_id, times in Counter(each.run_id for each in facts if each.run_id).items():
        if times > 1:
            names = ", ".join(each.name for each in facts if each.run_id == run_id)
            remarks.append(f"these are one server, which has {times} votes: {names}")
    if is_new(facts):
        remarks.append(NEW)
    else:
        remarks += _remarks_on_majority(facts)
        remarks += [
            f"{each.name}: does not take part: {each.trouble}" for each in facts if not each.takes_part
        ]
    for each in facts:
        remarks += [f"{each.name}: {remark}" for remark in _remarks_on_one(each)]
    offsets = [each.clock_offset for each in facts if each.clock_offset is not None]
    if offsets and max(offsets) - min(offsets) > CLOCKS_APART:
        apart = (max(offsets) - min(offsets)).total_seconds()
        remarks.append(f"the clocks of the nodes are {apart:.1f} s apart: run NTP on them")
    return remarks


def _remarks_on_majority(facts: Sequence[NodeFacts]) -> list[str]:
    remarks = []
    taking_part, majority = sum(each.takes_part for each in facts), Size(len(facts)).majority
    if taking_part < majority:
        remarks.append(f"only {taking_part} of {len(facts)} nodes take part, and {majority} are needed")
    if has_lost_majority(facts):
        remarks.append(
            "a majority lost its memory, and nobody knows what was granted. When nobody is at work any "
            "more, say so: celery -A app singleton quorum accept-memory-loss"
        )
    return remarks


def _remarks_on_one(node: NodeFacts) -> list[str]:
    remarks = []
    if node.role not in (None, "master"):
        remarks.append("is a replica: name independent masters, each once")
    if node.may_evict:
        remarks.append("may throw leases away when its memory is full: set maxmemory-policy noeviction")
    return remarks


def _seconds(span: timedelta | None) -> float | None:
    return None if span is None else round(span.total_seconds(), 6)
