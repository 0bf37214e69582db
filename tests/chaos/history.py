"""The journal of a world, read: who executed what, what was published, which faults were when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Final

from .journal import Event

FOREVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class Window:
    """A fault, from its begin to its end; `until` is infinite for one that never ended."""

    kind: str
    target: str
    since: float
    until: float
    amount: float = 0.0

    def touches(self, since: float, until: float) -> bool:
        return self.since <= until and since <= self.until

    def __str__(self) -> str:
        return f"{self.kind} {self.target}"


@dataclass(slots=True)
class Execution:
    """One try at a run, by one body."""

    id: str
    run: str
    task: str
    entry: str | None
    attempt: int
    pid: int
    start: Event
    events: list[Event] = field(default_factory=list)
    """All that it wrote, its start included."""
    held: list[Event] = field(default_factory=list)
    """Those of them that it wrote while it certainly held its lease: it looked before and after."""
    finish: Event | None = None
    concluded: Event | None = None
    recorded: Event | None = None
    worker: str = ""

    @property
    def last(self) -> Event:
        return self.recorded or self.concluded or self.events[-1]

    @property
    def fences(self) -> set[int]:
        return {event.fence for event in self.events}


class History:
    def __init__(self, events: Iterable[Event]) -> None:
        self.events: Sequence[Event] = tuple(events)

    def of(self, *kinds: str) -> list[Event]:
        return [event for event in self.events if event.what in kinds]

    def about(self, run: str, *kinds: str) -> list[Event]:
        return [event for event in self._by_run.get(run, ()) if event.what in kinds]

    @cached_property
    def _by_run(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.events:
            if "run" in event.facts:
                found[event.run].append(event)
        return found

    def when(self, what: str) -> float | None:
        """When it was first told of."""
        return next((event.at for event in self.events if event.what == what), None)

    @cached_property
    def faults(self) -> list[Window]:
        ends = {event.number: event.at for event in self.of("fault_end")}
        return [
            Window(each.kind, each.target, each.at, ends.get(each.number, FOREVER), each.amount)
            for each in self.of("fault")
        ]

    @cached_property
    def stalls(self) -> list[Window]:
        return [Window("stall", "machine", e.at - e.lasted, e.at) for e in self.of("stall")]

    @cached_property
    def executions(self) -> list[Execution]:
        """In the order of their starts."""
        known: dict[str, Execution] = {}
        by_event: dict[str, tuple[Execution, Event]] = {}
        at_work: dict[tuple[int, str], Execution] = {}
        workers = self._workers()
        for event in self.events:
            match event.what:
                case "start" | "effect" | "lost" | "finish":
                    if event.what == "start":
                        known[event.execution] = at_work[event.pid, event.run] = Execution(
                            event.execution, event.run, event.task, event.entry, event.attempt,
                            event.pid, event, worker=workers.get(event.pid, ""),
                        )  # fmt: skip
                    execution = known[event.execution]
                    execution.events.append(event)
                    by_event[event.event] = execution, event
                    if event.what == "finish":
                        execution.finish = event
                case "held":
                    execution, about = by_event[event.event]
                    execution.held.append(about)
                case "concluded" | "recorded":
                    at = at_work.get((event.pid, event.run))
                    if at is not None and event.what == "concluded":
                        at.concluded = event
                    elif at is not None:
                        at.recorded = event
        return list(known.values())

    def _workers(self) -> dict[int, str]:
        return {event.pid: event.replica for event in self.of("in_pool")}

    @cached_property
    def by_run(self) -> dict[str, list[Execution]]:
        found: dict[str, list[Execution]] = defaultdict(list)
        for execution in self.executions:
            found[execution.run].append(execution)
        return found

    @cached_property
    def slots(self) -> dict[str, dict[datetime, str]]:
        """Of each entry the slots that anybody heard of, and the id of each one's run."""
        found: dict[str, dict[datetime, str]] = defaultdict(dict)
        for event in self.of("published", "received"):
            if event.entry and event.slot:
                found[event.entry][datetime.fromisoformat(event.slot)] = event.run
        return found

    @cached_property
    def messages(self) -> dict[str, list[Event]]:
        """Of each run, what was published of its first attempt: from the broker, where that can be
        watched; otherwise what workers received that was not delivered before."""
        found: dict[str, list[Event]] = defaultdict(list)
        seen = "published" if self.is_broker_watched else "received"
        for event in self.of(seen):
            if event.attempt == 1 and not event.redelivered:
                found[event.run].append(event)
        return found

    @property
    def is_broker_watched(self) -> bool:
        return any(event.of == "BrokerMonitor" for event in self.of("monitoring"))

    @cached_property
    def concluded(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.of("concluded", "skipped"):
            found[event.run].append(event)
        return found

    @cached_property
    def letters(self) -> set[str]:
        return {event.run for event in self.of("letter")}
