"""One trial: a world, a plan, and the judgement of what happened."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from celery_singleton_lock.testing.servers import RedisServer

from . import app as application
from .checker import Judge, Terms, Violation, has_ended, is_lost_by_broker, judge
from .faults import Fault, StoreKind, menu, plan
from .history import History
from .world import BrokerKind, World

CALM_S: Final = 4.0
TERMS: Final = Terms(
    every={entry: every for entry, (_, every) in application.ENTRIES.items()},
    single=frozenset({"careful", "careless", "flaky"}),
    doomed=frozenset({"doomed"}),
    lock_ttl=application.LOCK_TTL_S,
    start_within=application.START_WITHIN_S,
)
SETTLE_S: Final = application.VISIBILITY_S + 4 * application.LOCK_TTL_S + 20


@dataclass(frozen=True)
class Trial:
    store: StoreKind
    broker: BrokerKind
    seed: int
    seconds: float
    faults: Sequence[Fault]
    history: History
    violations: Sequence[Violation]
    logs: Mapping[str, str]

    def counts(self) -> dict[str, int]:
        history, judging = self.history, Judge(self.history, TERMS)
        messages = history.messages.values()
        return {
            "slots": sum(map(len, history.slots.values())),
            "runs executed": len(history.by_run),
            "executions": len(history.executions),
            "taken over": sum(
                a.attempt == b.attempt for runs in history.by_run.values() for a, b in pairwise(runs)
            ),
            "copies published": sum(len(each) - 1 for each in messages if each),
            "letters": len(history.letters),
            "messages lost by the broker": sum(
                not has_ended(judging, entry, run) and is_lost_by_broker(judging, run)
                for entry, slots in history.slots.items()
                for run in slots.values()
            ),
            "faults": len(history.faults),
            "violations": len(self.violations),
        }

    def fault_counts(self) -> Counter[str]:
        return Counter(str(fault) for fault in self.history.faults)


def run_trial(
    place: Path,
    store: StoreKind,
    seed: int,
    seconds: float,
    *,
    broker: BrokerKind = "redis",
    faults: Sequence[Fault] | None = None,
    **options: Any,
) -> Trial:
    """`faults`: if none are given, the plan of this seed."""
    chosen = plan(seed, seconds, menu(store)) if faults is None else faults
    world = World(place, store, broker, **options)
    with world.running():
        world.wait_until_up()
        world.suffer(chosen, seconds)
        world.calm_down(CALM_S, lambda: is_settled(world), SETTLE_S)
    history = History(world.journal.read())
    return Trial(store, broker, seed, seconds, chosen, history, judge(history, TERMS), world.logs())


def is_settled(world: World) -> bool:
    """What was begun has ended, and the broker has nothing left."""
    history = History(world.journal.read())
    begun = {event.run for event in history.of("received")}
    if begun - history.concluded.keys():
        return False
    if not isinstance(world.broker, RedisServer):
        return True
    with world.broker.connect() as client:
        broker: Any = client
        return not broker.llen("celery") and not broker.hlen("unacked")
