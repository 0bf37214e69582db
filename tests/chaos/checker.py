"""What the history of a world may look like, and what not: the promises, one by one.

Nothing here is a matter of luck. Where a promise is weaker while something is broken, the allowance
names the faults that it is for, and where those must have been. Without them it is a violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from .faults import BEATS, WORKERS
from .history import Execution, History, Window
from .journal import Event

_AT_ONCE_S: Final = 0.3
_FAILOVER_S: Final = 8.0
_IN_QUEUE_S: Final = 15.0
"""How long a message may lie in the queue before a worker takes it."""
_LOOKS_IN_TURN_S: Final = 2.0
REPLICATED: Final = frozenset({"kill-master", "stop-master"})
"""Replicas lag: a failover forgets the last writes."""
TAKES_THE_LEASE: Final = frozenset(
    {"kill", "behead", "kill-child", "stop", "cut", "blackhole", "delay", "refuse", "forget", "clock",
     "fill-disk", "hold-lock", *REPLICATED}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    text: str
    at: float
    run: str = ""

    def __str__(self) -> str:
        return f"{self.promise}: {self.text}"


@dataclass(frozen=True, slots=True)
class Terms:
    """What the application under test was configured with, and how patient its judge is."""

    every: Mapping[str, float]
    """Of each entry, the seconds between its slots."""
    single: frozenset[str]
    """Tasks of which one run is executed at a time."""
    doomed: frozenset[str]
    """Tasks that always fail: their runs end as letters."""
    lock_ttl: float
    start_within: float
    """A run that nobody has started by then is published again."""
    noise: float = 3.0
    """Seconds by which a busy machine may be late. Never used where safety is judged."""


Check = Callable[["Judge"], Iterator[Violation]]


class Judge:
    def __init__(self, history: History, terms: Terms) -> None:
        self.history = history
        self.terms = terms

    def violations(self) -> list[Violation]:
        found = [violation for check in CHECKS for violation in check(self)]
        return sorted(found, key=lambda each: each.at)

    # Allowances

    def faults(
        self, since: float, until: float, *, kinds: frozenset[str] = TAKES_THE_LEASE, about: str = ""
    ) -> list[Window]:
        """Faults of these kinds in that time; `about`: a part of the name of who suffered."""
        return [
            fault
            for fault in self.history.faults
            if fault.kind in kinds and fault.touches(since, until) and about in fault.target
        ]

    def store_may_have_forgotten(self, since: float, until: float) -> bool:
        """One node of a quorum may forget, and nothing is forgotten. A master that wakes up after its
        successor was chosen takes writes until it is told: those are lost, too."""
        return any(
            fault.target == "store"
            and (
                (fault.kind == "forget" and fault.touches(since, until))
                or (fault.kind in REPLICATED and fault.touches(since - _FAILOVER_S, until))
            )
            for fault in self.history.faults
        )

    def store_clock_moved(self, since: float, until: float) -> bool:
        moved = self.faults(since, until, kinds=frozenset({"clock"}))
        # It moves when the fault begins, and back when it ends.
        return any(since <= moment <= until for fault in moved for moment in (fault.since, fault.until))

    def was_calm(self, since: float, until: float) -> bool:
        """Nobody was hurt, and the machine itself did not stand still."""
        return not any(
            fault.touches(since, until) for fault in (*self.history.faults, *self.history.stalls)
        )


def judge(history: History, terms: Terms) -> list[Violation]:
    """All that the history should not contain, oldest first."""
    return Judge(history, terms).violations()


# One execution at a time


def one_holder_at_a_time(judge: Judge) -> Iterator[Violation]:
    """Who certainly holds a lease is the only one: of one run, and of one job.

    An allowance only where the store forgot its grant, or where its clock was moved. A pause is none:
    whoever was stopped does not claim that it held its lease.
    """
    history, terms = judge.history, judge.terms
    by_key: dict[str, list[tuple[Event, Execution]]] = defaultdict(list)
    for execution in history.executions:
        for event in execution.held:
            by_key[f"run {execution.run}"].append((event, execution))
            if execution.task in terms.single:
                by_key[f"job {execution.task}"].append((event, execution))
    for key, claims in by_key.items():
        claims.sort(key=lambda claim: claim[0].line)
        over: dict[str, Event] = {}
        for (_, one), (after, other) in pairwise(claims):
            if one.id == other.id:
                continue
            over[one.id] = after
            if other.id not in over:
                continue
            window = other.start.at - terms.lock_ttl, after.at
            if not (judge.store_may_have_forgotten(*window) or judge.store_clock_moved(*window)):
                yield Violation(
                    "one holder at a time",
                    f"{key}: execution {other.id} holds it at line {after.line}, although {one.id} "
                    f"held it at line {over[other.id].line}",
                    after.at,
                    other.run,
                )


def fences_grow(judge: Judge) -> Iterator[Violation]:
    """No two executions write with one fence; and who holds a lease after another has a larger one."""
    by_job: dict[str, list[Execution]] = defaultdict(list)
    for execution in judge.history.executions:
        single = execution.task in judge.terms.single
        by_job[execution.task if single else execution.run].append(execution)
    for job, executions in by_job.items():
        used: dict[int, Execution] = {}
        for execution in executions:
            for fence in execution.fences:
                other = used.setdefault(fence, execution)
                if other is not execution:
                    yield Violation(
                        "fences grow",
                        f"{job}: executions {other.id} and {execution.id} both wrote with {fence}",
                        execution.start.at,
                        execution.run,
                    )
        claims = sorted(
            ((event, execution) for execution in executions for event in execution.held),
            key=lambda claim: claim[0].line,
        )
        for (before, one), (after, other) in pairwise(claims):
            if after.fence < before.fence and not _both_hold(judge, one, before, after):
                yield Violation(
                    "fences grow",
                    f"{job}: {other.id} holds it with fence {after.fence} after {one.id} did with "
                    f"{before.fence}",
                    after.at,
                    other.run,
                )


def _both_hold(judge: Judge, one: Execution, before: Event, after: Event) -> bool:
    """Whether two may hold it at once, so that the order of their lines says nothing. Where the store
    lost its data and its clock went back as well, fences are not promised to grow."""
    window = one.start.at - 2 * judge.terms.lock_ttl, after.at
    return judge.store_may_have_forgotten(*window) or judge.store_clock_moved(*window)


def grants_grow(judge: Judge) -> Iterator[Violation]:
    """As the lease store itself tells it: each grant of a key has a larger fence than the last."""
    last: dict[str, Event] = {}
    for event in judge.history.of("granted"):
        before = last.get(event.key)
        if before is not None and event.fence <= before.fence:
            window = before.at, event.at
            lost_and_turned_back = judge.store_may_have_forgotten(*window) and judge.store_clock_moved(
                *window
            )
            if not lost_and_turned_back:
                yield Violation(
                    "fences grow",
                    f"{event.key} was granted with fence {event.fence} after {before.fence}",
                    event.at,
                )
        last[event.key] = event


# No run twice


def finished_runs_stay_finished(judge: Judge) -> Iterator[Violation]:
    """When its end is recorded, a run does not start again. An allowance where the store forgot that,
    and where the lease was lost before the record: then it is not this one who records."""
    for run, executions in judge.history.by_run.items():
        for one in executions:
            recorded = one.recorded
            if recorded is None or recorded.state != "SUCCESS":
                continue
            for other in executions:
                if other is one or other.start.line < recorded.line:
                    continue
                if judge.store_may_have_forgotten(one.start.at, other.start.at):
                    continue
                if _was_recorded_late(judge, one):
                    continue
                yield Violation(
                    "a finished run does not start again",
                    f"{one.task}: execution {one.id} recorded the end at line {recorded.line}, and "
                    f"{other.id} started at line {other.start.line}",
                    other.start.at,
                    run,
                )


def _was_recorded_late(judge: Judge, execution: Execution) -> bool:
    """Whether the lease may have run out between the word of success and its record: the store could
    not be reached, or the worker did not live to do it."""
    told, recorded = execution.concluded, execution.recorded
    if told is None or recorded is None:
        return told is not None
    return bool(recorded.at - told.at > _AT_ONCE_S and not judge.was_calm(told.at, recorded.at))


def one_conclusion(judge: Judge) -> Iterator[Violation]:
    """The success of a run is told to the world once. An allowance where who told it died, or could not
    reach the store, before that was recorded; and where it slept between its last look and its word."""
    for run, executions in judge.history.by_run.items():
        told = [each for each in executions if each.concluded and each.concluded.outcome == "succeeded"]
        told.sort(key=lambda each: each.last.line)
        for one, other in pairwise(told):
            if judge.store_may_have_forgotten(one.start.at, other.last.at):
                continue
            if _slept(one, other) or any(_was_recorded_late(judge, each) for each in (one, other)):
                continue
            yield Violation(
                "a run ends once",
                f"{one.task}: execution {one.id} succeeded, and so did {other.id}, until line "
                f"{other.last.line}",
                other.last.at,
                run,
            )


def _slept(*executions: Execution) -> bool:
    """Between the end of the body and the word of its success: no code can prevent that."""
    return any(
        each.concluded and each.finish and each.concluded.at - each.finish.at > 1.0
        for each in executions
    )


def no_takeover_without_a_reason(judge: Judge) -> Iterator[Violation]:
    """A second execution needs a first one that was hurt, could not reach its store, or lost its lease
    with the store's memory."""
    for run, executions in judge.history.by_run.items():
        for one, other in pairwise(executions):
            if other.attempt != one.attempt:
                continue
            if judge.was_calm(one.start.at - 3 * judge.terms.lock_ttl, other.start.at):
                yield Violation(
                    "no takeover without a reason",
                    f"{one.task}: {other.id} started after {one.id}, and nobody was hurt",
                    other.start.at,
                    run,
                )


def attempts_go_on(judge: Judge) -> Iterator[Violation]:
    """A stale copy of an earlier attempt is not executed."""
    for run, executions in judge.history.by_run.items():
        claims = [(event, each) for each in executions for event in each.held]
        claims.sort(key=lambda claim: claim[0].line)
        for (before, one), (after, other) in pairwise(claims):
            if other.attempt >= one.attempt or judge.store_may_have_forgotten(one.start.at, after.at):
                continue
            if not judge.store_clock_moved(one.start.at, after.at):
                yield Violation(
                    "attempts go on",
                    f"attempt {other.attempt} at line {after.line}, after attempt {one.attempt} at "
                    f"line {before.line}",
                    after.at,
                    run,
                )


# No slot lost


def every_slot_is_published(judge: Judge) -> Iterator[Violation]:
    for entry, every in judge.terms.every.items():
        slots = judge.history.slots.get(entry, {})
        if not slots:
            yield Violation("no slot is lost", f"{entry} was never published", 0.0)
            continue
        for slot in _expected(judge, min(slots), every):
            if slot not in slots:
                at = _at(judge, slot)
                yield Violation(
                    "no slot is lost", f"{entry}: slot {slot:%H:%M:%S} was not published", at
                )


def _expected(judge: Judge, first: datetime, every: float) -> list[datetime]:
    """From the first one that was published to the last that was due when beats were ended."""
    end = judge.history.when("last_slot")
    if end is None:
        return []
    last = _wall(judge, end - judge.terms.noise)
    step = timedelta(seconds=every)
    return [first + number * step for number in range(max(0, (last - first) // step + 1))]


def _wall(judge: Judge, at: float) -> datetime:
    [began] = judge.history.of("began")
    return datetime.fromtimestamp(began.wall + at - began.at, UTC)


def _at(judge: Judge, slot: datetime) -> float:
    [began] = judge.history.of("began")
    return float(slot.timestamp() - began.wall + began.at)


def every_run_ends(judge: Judge) -> Iterator[Violation]:
    """What was published is executed to its end, or is a letter. Only a Redis broker may lose a
    message: one that it has handed out, and that never arrived."""
    history, terms = judge.history, judge.terms
    received = {event.run for event in history.of("received")}
    for entry, slots in history.slots.items():
        is_doomed = entry in terms.doomed
        for slot, run in slots.items():
            if has_ended(judge, entry, run) or is_lost_by_broker(judge, run):
                continue
            heard = "received" if run in received else "published"
            what = "is no letter" if is_doomed else "did not end"
            yield Violation(
                "every run ends", f"{entry}: slot {slot:%H:%M:%S} was {heard}, and {what}",
                _at(judge, slot), run,
            )  # fmt: skip


def has_ended(judge: Judge, entry: str, run: str) -> bool:
    if entry in judge.terms.doomed:
        return run in judge.history.letters
    return run in judge.history.concluded


def is_lost_by_broker(judge: Judge, run: str) -> bool:
    """A Redis broker takes a message out of its queue before anybody has it: who is killed, or cut off,
    at that moment loses it. Its last word on the run is then that it was put into the queue, for the
    first time or again. No allowance for a slot's first message, where a beat lived that could see that
    nobody started the run."""
    history = judge.history
    if not history.is_broker_watched:
        return False
    words = list(history.about(run, "published", "received"))
    # Of the latest attempt: a copy of an earlier one may well come after it.
    latest = max((event.attempt for event in words), default=0)
    words = [event for event in words if event.attempt == latest]
    last = max(words, key=lambda event: event.line, default=None)
    if last is None or last.what != "published":
        return False
    published = history.about(run, "published")
    if last is published[0] and not history.about(run, "received") and _was_watched(judge, last.at):
        return False
    hurt = judge.faults(last.at - 1, last.at + _IN_QUEUE_S)
    return any(fault.target in WORKERS or "broker" in fault.target for fault in hurt)


def _was_watched(judge: Judge, published_at: float) -> bool:
    """Whether a beat lived, and could reach all servers, until it should have looked after the run."""
    until = published_at + judge.terms.start_within + _LOOKS_IN_TURN_S + judge.terms.noise
    end = judge.history.when("last_slot")
    if end is None or until > end:
        return False
    hurt = {
        fault.target
        for fault in (*judge.history.faults, *judge.history.stalls)
        if fault.touches(published_at - 1, until)
    }
    return any(hurt <= {*WORKERS, *BEATS} - {beat} for beat in BEATS)


def copies_have_a_reason(judge: Judge) -> Iterator[Violation]:
    """A slot is published once, unless somebody was hurt meanwhile. It is published soon after it is
    due; where only workers tell of it, they may have been away, and tell it much later."""
    for entry, slots in judge.history.slots.items():
        for slot, run in slots.items():
            messages = judge.history.messages.get(run, [])
            if len(messages) < 2:
                continue
            began = min(messages[0].at, _at(judge, slot)) - 3 * judge.terms.lock_ttl
            if judge.was_calm(began, messages[-1].at):
                yield Violation(
                    "a slot is published once",
                    f"{entry}: slot {slot:%H:%M:%S} was published {len(messages)} times, and nobody "
                    "was hurt",
                    messages[-1].at,
                    run,
                )


def nothing_is_early(judge: Judge) -> Iterator[Violation]:
    if any(fault.kind == "clock" for fault in judge.history.faults):
        return  # there is no clock to judge by
    for run, messages in judge.history.messages.items():
        for message in messages[:1]:
            if not message.slot:
                continue
            early = _at(judge, datetime.fromisoformat(message.slot)) - message.at
            if early > 0.1:
                text = f"{message.entry}: {message.slot} was published {early:.2f} s early"
                yield Violation("no slot is early", text, message.at, run)


def published_before_recorded(judge: Judge) -> Iterator[Violation]:
    """The store never says of a slot that it is done before the broker has it. From what both servers
    tell of themselves, by one clock; so not where that of the store was moved."""
    history = judge.history
    if any(fault.kind == "clock" for fault in history.faults) or not history.is_broker_watched:
        return
    gaps = [event.at for event in history.of("monitoring")]
    first_published: dict[tuple[str, int], float] = {}
    for event in history.of("published"):
        if event.entry and event.slot:
            position = int(datetime.fromisoformat(event.slot).timestamp()) * 1_000_000
            first_published.setdefault((event.entry, position), event.clock)
    positions: dict[str, Event] = {}
    for event in history.of("positioned"):
        entry = event.key.rpartition(":")[2]
        if entry not in judge.terms.every:
            continue
        before = positions.get(entry)
        positions[entry] = event
        if before is None or any(before.at - 5 <= gap <= event.at + 0.5 for gap in gaps):
            continue  # somebody did not look all the time
        published_at = first_published.get((entry, event.position))
        if event.position > before.position and (published_at is None or published_at > event.clock):
            slot = datetime.fromtimestamp(event.position / 1_000_000, UTC)
            yield Violation(
                "published before recorded",
                f"{entry}: slot {slot:%H:%M:%S} was recorded as done, and not published before",
                event.at,
            )


# Nobody gives up


def nobody_exits(judge: Judge) -> Iterator[Violation]:
    for event in judge.history.of("exited"):
        yield Violation("nobody exits by itself", f"{event.name} exited with {event.code}", event.at)
    for event in judge.history.of("would_not_end"):
        yield Violation("nobody hangs", f"{event.name} did not end when asked to", event.at)


def nothing_is_stuck(judge: Judge) -> Iterator[Violation]:
    for event in judge.history.of("left"):
        if event.queued or event.unacknowledged:
            text = f"{event.queued} messages are queued, and {event.unacknowledged} not acknowledged"
            yield Violation("nothing is stuck", text, event.at)
    for event in judge.history.of("store_left"):
        yield Violation(
            "nothing is stuck", f"the lease store cannot be asked: {event.reason}", event.at
        )
    for event in judge.history.of("lease_left"):
        yield Violation("nothing is stuck", f"lease {event.key} is {event.state}", event.at)


def takeover_is_quick(judge: Judge) -> Iterator[Violation]:
    """The run of a worker that was killed starts again when its lease has run out, and little later.
    The time counts from when nobody was hurt any more, and a worker was there. Where the store forgot
    the run, only the broker knows of it, which takes its own time."""
    history, terms = judge.history, judge.terms
    most = terms.lock_ttl + 2 + terms.noise
    for run, executions in history.by_run.items():
        for one, other in pairwise(executions):
            killed = _killed_in(judge, one, other)
            if killed is None or judge.store_may_have_forgotten(one.start.at, other.start.at):
                continue
            hurt = [
                fault.until
                for fault in (*history.faults, *history.stalls)
                if fault.touches(killed.since, other.start.at)
            ]
            waited = other.start.at - max(*hurt, _worked_since(judge, other.start.at))
            if waited > most:
                text = f"{one.task}: its worker was killed, and it started again {waited:.1f} s later"
                yield Violation("takeover is quick", text, other.start.at, run)


def _worked_since(judge: Judge, until: float) -> float:
    """Since when there was a worker all the time: on a busy machine it takes its time to start."""
    came = [(event.at, event.replica, True) for event in judge.history.of("ready")]
    went = [
        (fault.since, fault.target, False)
        for fault in judge.history.faults
        if fault.target in WORKERS and fault.kind in ("kill", "behead")
    ]
    ready: set[str] = set()
    since = 0.0
    for at, worker, is_ready in sorted(came + went):
        if at > until:
            break
        if is_ready and not ready:
            since = at
        ready = ready | {worker} if is_ready else ready - {worker}
    return since


def _killed_in(judge: Judge, one: Execution, other: Execution) -> Window | None:
    if one.recorded is not None or not one.worker:
        return None
    kills = judge.faults(one.events[-1].at, other.start.at, kinds=frozenset({"kill"}), about=one.worker)
    return next((kill for kill in kills if kill.target == one.worker), None)


CHECKS: Final[tuple[Check, ...]] = (
    one_holder_at_a_time,
    fences_grow,
    grants_grow,
    finished_runs_stay_finished,
    one_conclusion,
    no_takeover_without_a_reason,
    attempts_go_on,
    every_slot_is_published,
    every_run_ends,
    copies_have_a_reason,
    nothing_is_early,
    published_before_recorded,
    nobody_exits,
    nothing_is_stuck,
    takeover_is_quick,
)
