"""The checker sees a broken promise in each history that breaks one, and none in others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from .checker import CHECKS, Judge, Terms, judge
from .history import History
from .journal import Event

WALL = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
TERMS = Terms(
    every={"job": 10.0, "doomed": 10.0},
    single=frozenset({"job"}),
    doomed=frozenset({"doomed"}),
    lock_ttl=3.0,
    start_within=6.0,
)


class Tale:
    """Writes a history by hand. Times are seconds after noon, when the world began."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.tell("began", 0, wall=WALL)
        self.tell("monitoring", 0, of="BrokerMonitor")

    def tell(self, what: str, at: float, **facts: Any) -> Event:
        event = Event(len(self.events), at, what, {"pid": 1, **facts})
        self.events.append(event)
        return event

    def publish(
        self, run: str, at: float, *, slot: float = 10, entry: str = "job", **more: Any
    ) -> None:
        about = {"run": run, "entry": entry, "slot": _iso(slot), "attempt": 1, "redelivered": False}
        self.tell("published", at, clock=WALL + at, **about)
        self.tell("received", at, **about)

    def step(
        self, what: str, at: float, execution: str, *, run: str = "r1", fence: int = 1,
        held: bool = True, task: str = "job", attempt: int = 1, pid: int = 1,
    ) -> None:  # fmt: skip
        event = f"{execution}-{len(self.events)}"
        self.tell(
            what, at, event=event, execution=execution, run=run, task=task, entry=task, fence=fence,
            attempt=attempt, pid=pid,
        )  # fmt: skip
        if held:
            self.tell("held", at, event=event)

    def execute(
        self, execution: str, at: float, *, run: str = "r1", fence: int = 1, pid: int = 1
    ) -> None:
        self.step("start", at, execution, run=run, fence=fence, pid=pid)
        self.step("effect", at + 1, execution, run=run, fence=fence, pid=pid)
        self.step("finish", at + 2, execution, run=run, fence=fence, pid=pid)
        self.conclude(at + 2, run, pid=pid)

    def conclude(
        self, at: float, run: str = "r1", *, recorded: float | None = None, pid: int = 1
    ) -> None:
        self.tell("concluded", at, run=run, outcome="succeeded", pid=pid)
        self.tell("recorded", recorded or at, run=run, state="SUCCESS", pid=pid)

    def fault(self, kind: str, target: str, since: float, until: float) -> None:
        """Anywhere in the history: only its times count."""
        number = len(self.events)
        self.tell("fault", since, number=number, kind=kind, target=target, amount=0.0)
        self.tell("fault_end", until, number=number)

    def letter(self, run: str) -> None:
        self.tell("letter", 40, run=run, letter="l")

    def broken(self) -> set[str]:
        return {violation.promise for violation in judge(History(self.events), TERMS)}


def _iso(after_noon: float) -> str:
    return datetime.fromtimestamp(WALL + after_noon, UTC).isoformat()


@pytest.fixture
def tale() -> Tale:
    """One slot of each entry, published and executed as it should be."""
    tale = Tale()
    tale.publish("r1", 10.1)
    tale.publish("d1", 10.1, entry="doomed")
    tale.letter("d1")
    return tale


def test_a_history_as_it_should_be_breaks_nothing(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("left", 41, queued=0, unacknowledged=0)
    assert tale.broken() == set()


def test_a_takeover_after_a_kill_breaks_nothing(tale: Tale) -> None:
    tale.step("start", 11, "a")
    tale.fault("kill", "worker-0", 11.5, 12)
    tale.execute("b", 15, fence=2, pid=2)
    assert tale.broken() == set()


def _two_holders(tale: Tale) -> None:
    tale.step("start", 11, "a", fence=1)
    tale.fault("stop", "worker-0", 11, 12)
    tale.step("start", 13, "b", fence=2, pid=2)
    tale.step("effect", 14, "a", fence=1)
    tale.conclude(15, pid=2)


def _two_runs_of_a_job(tale: Tale) -> None:
    tale.publish("r2", 20.1, slot=20)
    tale.step("start", 11, "a", run="r1", fence=1)
    tale.step("start", 13, "b", run="r2", fence=2, pid=2)
    tale.step("effect", 14, "a", run="r1", fence=3)
    tale.conclude(14.1, "r1")
    tale.conclude(15, "r2", pid=2)


def _shared_fence(tale: Tale) -> None:
    tale.step("start", 11, "a", fence=5, held=False)
    tale.fault("kill", "worker-0", 11, 12)
    tale.execute("b", 16, fence=5, pid=2)


def _smaller_fence(tale: Tale) -> None:
    tale.step("start", 11, "a", fence=5)
    tale.fault("kill", "worker-0", 11, 12)
    tale.execute("b", 16, fence=4, pid=2)


def _smaller_grant(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("granted", 11, key="task:job", owner="a", fence=9, clock=0)
    tale.tell("granted", 12, key="task:job", owner="b", fence=9, clock=0)


def _started_again(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.fault("kill", "worker-0", 14, 15)
    tale.step("start", 20, "b", fence=2, pid=2)


def _succeeded_twice(tale: Tale) -> None:
    tale.step("start", 11, "a", fence=1)
    tale.fault("stop", "worker-0", 11, 19)
    tale.execute("b", 16, fence=2, pid=2)
    tale.step("finish", 19, "a", fence=1, held=False)
    tale.conclude(19)


def _taken_over_for_nothing(tale: Tale) -> None:
    tale.step("start", 11, "a", fence=1)
    tale.execute("b", 16, fence=2, pid=2)


def _attempt_turned_back(tale: Tale) -> None:
    tale.step("start", 11, "a", fence=1, attempt=2)
    tale.fault("kill", "worker-0", 11, 12)
    tale.step("start", 16, "b", fence=2, attempt=1, pid=2)
    tale.conclude(17, pid=2)


def _gap_between_slots(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.publish("r3", 30.1, slot=30)
    tale.execute("b", 31, run="r3", fence=2)
    tale.tell("last_slot", 35)


def _never_published(tale: Tale) -> None:
    tale.events = [event for event in tale.events if event.facts.get("entry") != "doomed"]
    tale.execute("a", 11)


def _received_and_forgotten(tale: Tale) -> None:
    tale.step("start", 11, "a")
    tale.fault("kill", "worker-0", 11.5, 12)


def _published_and_gone(tale: Tale) -> None:
    tale.events = [event for event in tale.events if event.what != "received" or event.entry != "job"]


def _no_letter(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.events = [event for event in tale.events if event.what != "letter"]


def _published_twice(tale: Tale) -> None:
    tale.publish("r1", 10.3)
    tale.execute("a", 11)


def _early(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.publish("r2", 19.5, slot=20)
    tale.execute("b", 20, run="r2", fence=2)


def _recorded_first(tale: Tale) -> None:
    tale.execute("a", 11)
    for slot, clock in ((10, 10.2), (20, 20.1)):
        position = int((WALL + slot) * 1_000_000)
        tale.tell("positioned", clock, key="s:beat:app:job", position=position, clock=WALL + clock)
    tale.publish("r2", 20.3, slot=20)
    tale.execute("b", 21, run="r2", fence=2)


def _exit(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("exited", 12, name="beat-0", code=1, log="")


def _hang(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("would_not_end", 50, name="worker-0", log="")


def _message_left(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("left", 50, queued=0, unacknowledged=1)


def _lease_left(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("lease_left", 50, key="run:r1", state="HELD")


def _store_left(tale: Tale) -> None:
    tale.execute("a", 11)
    tale.tell("store_left", 50, reason="a majority of its nodes lost its memory")


def _slow_takeover(tale: Tale) -> None:
    tale.tell("in_pool", 0, replica="worker-0", pid=1)
    tale.step("start", 11, "a")
    tale.fault("kill", "worker-0", 11.5, 12)
    tale.execute("b", 25, fence=2, pid=2)


def test_a_copy_is_excused_by_who_was_hurt_when_it_was_due(tale: Tale) -> None:
    for at in (40, 40.1):  # nobody was there before who could tell of it
        tale.publish("r2", at, slot=20)
    tale.execute("a", 11)
    tale.execute("b", 41, run="r2", fence=2)
    assert "a slot is published once" in tale.broken()
    tale.fault("stop", "beat-0", 20.5, 21)
    assert "a slot is published once" not in tale.broken()


def test_a_takeover_takes_as_long_as_there_is_no_worker(tale: Tale) -> None:
    tale.tell("ready", 9, replica="worker-1", pid=9)
    _slow_takeover(tale)
    assert tale.broken() == {"takeover is quick"}
    tale.fault("kill", "worker-1", 11.6, 12)
    tale.tell("ready", 24, replica="worker-1", pid=2)
    assert tale.broken() == set()


def test_a_takeover_takes_its_time_where_the_store_forgot_the_run(tale: Tale) -> None:
    _slow_takeover(tale)
    tale.fault("forget", "store", 11.2, 11.4)
    assert "takeover is quick" not in tale.broken()


BREAKS: list[tuple[Callable[[Tale], None], str]] = [
    (_two_holders, "one holder at a time"),
    (_two_runs_of_a_job, "one holder at a time"),
    (_shared_fence, "fences grow"),
    (_smaller_fence, "fences grow"),
    (_smaller_grant, "fences grow"),
    (_started_again, "a finished run does not start again"),
    (_succeeded_twice, "a run ends once"),
    (_taken_over_for_nothing, "no takeover without a reason"),
    (_attempt_turned_back, "attempts go on"),
    (_gap_between_slots, "no slot is lost"),
    (_never_published, "no slot is lost"),
    (_received_and_forgotten, "every run ends"),
    (_published_and_gone, "every run ends"),
    (_no_letter, "every run ends"),
    (_published_twice, "a slot is published once"),
    (_early, "no slot is early"),
    (_recorded_first, "published before recorded"),
    (_exit, "nobody exits by itself"),
    (_hang, "nobody hangs"),
    (_message_left, "nothing is stuck"),
    (_lease_left, "nothing is stuck"),
    (_store_left, "nothing is stuck"),
    (_slow_takeover, "takeover is quick"),
]


@pytest.mark.parametrize(
    ("break_it", "promise"), BREAKS, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_broken_promise_is_seen(tale: Tale, break_it: Callable[[Tale], None], promise: str) -> None:
    break_it(tale)
    assert promise in tale.broken()


def test_every_check_finds_one_of_the_breaks() -> None:
    idle = set(CHECKS)
    for break_it, _ in BREAKS:
        tale = Tale()
        tale.publish("r1", 10.1)
        tale.publish("d1", 10.1, entry="doomed")
        tale.letter("d1")
        break_it(tale)
        idle -= {check for check in CHECKS if list(check(Judge(History(tale.events), TERMS)))}
    assert idle == set()


# What is allowed, and only for the faults that it is allowed for


@pytest.mark.parametrize(
    ("kind", "target", "is_allowed"),
    [("forget", "store", True), ("kill-master", "store", True), ("kill", "store", False),
     ("forget", "store-1", False), ("stop", "worker-0", False), ("cut", "worker-0>store", False)],
)  # fmt: skip
def test_only_a_store_that_forgot_lets_a_finished_run_start_again(
    tale: Tale, kind: str, target: str, is_allowed: bool
) -> None:
    tale.execute("a", 11)
    tale.fault(kind, target, 14, 15)
    tale.execute("b", 20, fence=2, pid=2)
    assert ("a finished run does not start again" not in tale.broken()) is is_allowed


@pytest.mark.parametrize(
    ("kind", "target", "is_allowed"),
    [("forget", "store", True), ("clock", "store", True), ("stop", "worker-0", False),
     ("stop", "store", False), ("blackhole", "worker-0>store", False)],
)  # fmt: skip
def test_a_pause_is_no_excuse_for_two_holders(
    tale: Tale, kind: str, target: str, is_allowed: bool
) -> None:
    tale.step("start", 11, "a", fence=1)
    tale.fault(kind, target, 11.5, 12.5)
    tale.step("start", 13, "b", fence=2, pid=2)
    tale.step("effect", 14, "a", fence=1)
    tale.conclude(15, pid=2)
    assert ("one holder at a time" not in tale.broken()) is is_allowed


def test_a_run_whose_end_was_recorded_too_late_may_be_repeated(tale: Tale) -> None:
    tale.step("start", 11, "a")
    tale.step("finish", 12, "a")
    tale.fault("stop", "store", 12, 18)
    tale.conclude(12, recorded=18)
    tale.execute("b", 19, fence=2, pid=2)
    assert tale.broken() == set()


def test_a_message_that_a_redis_broker_lost_is_nobodys_fault(tale: Tale) -> None:
    tale.events = [event for event in tale.events if event.what != "received" or event.entry != "job"]
    tale.fault("kill", "worker-0", 10, 11)
    assert tale.broken() == set()
    tale.events = [event for event in tale.events if event.what != "monitoring"]
    assert tale.broken() == {"every run ends"}  # RabbitMQ loses none


def test_a_retry_that_a_redis_broker_lost_is_nobodys_fault_whatever_comes_of_its_first_message(
    tale: Tale,
) -> None:
    tale.execute("a", 11)
    tale.publish("r2", 30, slot=30)
    tale.step("start", 30.1, "x2", run="r2", fence=2)
    about = {"run": "r2", "entry": "job", "slot": _iso(30)}
    tale.tell("published", 31, clock=WALL + 31, attempt=2, redelivered=False, **about)
    for what in ("published", "received"):
        tale.tell(what, 43, clock=WALL + 43, attempt=1, redelivered=True, **about)
    assert "every run ends" in tale.broken()
    tale.fault("kill", "worker-0", 31.1, 32)
    assert "every run ends" not in tale.broken()


def _lose_message(tale: Tale, until: float) -> None:
    """Nobody receives it, and until their end beats do not publish it again."""
    tale.events = [event for event in tale.events if event.what != "received" or event.entry != "job"]
    tale.fault("kill", "worker-0", 10, 11)
    tale.tell("last_slot", until)


def test_a_beat_that_lives_has_to_see_that_a_message_was_lost(tale: Tale) -> None:
    _lose_message(tale, 30)
    assert "every run ends" in tale.broken()
    tale.fault("kill", "beat-0", 12, 13)
    assert "every run ends" in tale.broken()  # the other one lives
    tale.fault("cut", "beat-1>store", 12, 13)
    assert "every run ends" not in tale.broken()


def test_beats_that_end_before_cannot_see_it(tale: Tale) -> None:
    _lose_message(tale, 20)
    assert "every run ends" not in tale.broken()


def test_a_copy_is_allowed_while_a_beat_was_killed(tale: Tale) -> None:
    tale.fault("kill", "beat-0", 10.1, 10.2)
    tale.publish("r1", 11.5)
    tale.execute("a", 12)
    assert tale.broken() == set()
