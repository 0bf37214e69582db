"""What the nemesis does, and when: a pure function of a seed, so that it can be played again."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

StoreKind = Literal["redis", "sentinel", "cluster", "redlock", "postgres", "mariadb", "sqlite"]
STORES: Final[tuple[StoreKind, ...]] = (
    "redis", "sentinel", "cluster", "redlock", "postgres", "mariadb", "sqlite",
)  # fmt: skip
BEATS: Final = ("beat-0", "beat-1")
WORKERS: Final = ("worker-0", "worker-1")
REDLOCK_NODES: Final = 3


@dataclass(frozen=True, slots=True)
class Fault:
    """`at`: seconds after the world is up. `amount`: of a delay or a jump of a clock, in seconds."""

    at: float
    lasts: float
    what: str
    target: str
    amount: float = 0.0

    def __str__(self) -> str:
        amount = f" by {self.amount:+.2f} s" if self.amount else ""
        return f"{self.at:6.1f} s  {self.what} {self.target}{amount} for {self.lasts:.1f} s"


@dataclass(frozen=True, slots=True)
class Kind:
    """One thing that may be done, to any of `targets`, as often as `weight` says."""

    what: str
    targets: Sequence[str]
    lasts: tuple[float, float]
    weight: float = 1.0
    amounts: tuple[float, float] = (0.0, 0.0)


def _links(ends: Sequence[str], to: str) -> list[str]:
    return [f"{end}>{to}" for end in ends]


_REPLICAS: Final = (*BEATS, *WORKERS)
PROCESSES: Final = (
    Kind("kill", BEATS, (0.2, 4), 2),
    Kind("kill", WORKERS, (0.2, 4), 2),
    # The parent alone: its children finish what they are at, and nobody hears of it.
    Kind("behead", WORKERS, (0.5, 3)),
    Kind("kill-child", WORKERS, (0, 0)),
    Kind("stop", BEATS, (0.3, 6), 2),
    # Longer than a lease lasts, more often than not.
    Kind("stop", WORKERS, (0.5, 7), 3),
)
BROKER: Final = (
    Kind("cut", _links(_REPLICAS, "broker"), (0, 0), 2),
    Kind("blackhole", _links(_REPLICAS, "broker"), (0.5, 4)),
    Kind("delay", _links(_REPLICAS, "broker"), (1, 4), 1, (0.05, 0.6)),
    Kind("refuse", _links(_REPLICAS, "broker"), (0.5, 3)),
    Kind("kill", ("broker",), (0.2, 3), 0.7),
    Kind("stop", ("broker",), (0.5, 3), 0.7),
)
_STORE_LINKS: Final = (
    Kind("cut", _links(_REPLICAS, "store"), (0, 0), 2),
    Kind("blackhole", _links(_REPLICAS, "store"), (0.5, 6), 2),
    Kind("delay", _links(_REPLICAS, "store"), (1, 5), 2, (0.05, 0.9)),
    Kind("refuse", _links(_REPLICAS, "store"), (0.5, 5)),
)
_ONE_SERVER: Final = (
    Kind("kill", ("store",), (0.2, 5), 1.5),
    Kind("stop", ("store",), (0.5, 5), 1.5),
)
_FAILOVER: Final = (
    Kind("kill-master", ("store",), (1, 4), 3),
    Kind("stop-master", ("store",), (0.5, 6), 3),
)
_NODES: Final = [f"store-{number}" for number in range(REDLOCK_NODES)]
STORE: Final[dict[StoreKind, tuple[Kind, ...]]] = {
    "redis": (
        *_STORE_LINKS,
        *_ONE_SERVER,
        Kind("forget", ("store",), (0.2, 2)),
        Kind("clock", ("store",), (2, 6), 1, (-4, 4)),
        Kind("fill-disk", ("store",), (1, 4), 0.7),
    ),
    "sentinel": _FAILOVER,
    "cluster": _FAILOVER,
    "redlock": (
        Kind("kill", _NODES, (0.2, 4), 2),
        Kind("stop", _NODES, (0.5, 5), 2),
        Kind("forget", _NODES, (0.2, 3), 2),
        Kind("cut", _links(["all"], "store-0"), (0, 0)),
        Kind("blackhole", [f"all>{node}" for node in _NODES], (0.5, 5), 2),
        Kind("delay", [f"all>{node}" for node in _NODES], (1, 5), 2, (0.05, 0.9)),
    ),
    "postgres": (*_STORE_LINKS, *_ONE_SERVER),
    "mariadb": (*_STORE_LINKS, *_ONE_SERVER),
    "sqlite": (
        Kind("hold-lock", ("store",), (0.3, 4), 3),
        Kind("fill-disk", ("store",), (1, 4), 2),
    ),
}  # fmt: skip
GAP_S: Final = (0.2, 2.2)
LOOK_BACK: Final = 100
"""Faults before these are over."""
APART_S: Final = 6.0
"""Between two faults of nodes of one quorum: the one that forgot is repaired meanwhile. Two at once are
a majority of three, of which nothing is promised but that fences grow."""


def menu(store: StoreKind) -> tuple[Kind, ...]:
    return (*PROCESSES, *BROKER, *STORE[store])


def plan(seed: int, seconds: float, kinds: Sequence[Kind]) -> list[Fault]:
    """Faults for so many seconds. Some overlap; never two of one target, nor of both beats."""
    chance = random.Random(seed)
    faults: list[Fault] = []
    at = 1.0
    while at < seconds:
        kind = chance.choices(kinds, [each.weight for each in kinds])[0]
        target = chance.choice(kind.targets)
        fault = Fault(
            round(at, 2),
            round(chance.uniform(*kind.lasts), 2),
            kind.what,
            target,
            round(chance.uniform(*kind.amounts), 2),
        )
        if not any(_collide(fault, other) for other in faults[-LOOK_BACK:]):
            faults.append(fault)
        at += chance.uniform(*GAP_S)
    return faults


def _collide(fault: Fault, other: Fault) -> bool:
    one, two = _subject(fault.target), _subject(other.target)
    apart = APART_S if one == two == "quorum" else 0.5
    return one == two and fault.at < other.at + other.lasts + apart


def _subject(target: str) -> str:
    """Who suffers. While one beat is hurt, the other is not: one must live to publish."""
    if "store-" in target:
        return "quorum"
    if target in BEATS:
        return "beats"
    end, _, server = target.partition(">")
    return f"beats>{server}" if end in BEATS and server else target
