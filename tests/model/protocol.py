"""The protocol of one slot: claimed, published, recorded; begun, executed, finished, taken over.

Each step is named as the code that does it, and is as much as happens in one go there: one call of the
store or the broker, or one look at a clock. Between any two of them everything else may happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from .explorer import Step

LETTER_DUE: Final = 1
FINISHED: Final = 2


class Record(NamedTuple):
    """What the store keeps under a key. The fence is the name of its last grant, and of its holder."""

    fence: int = 0
    is_held: bool = False
    is_expired: bool = False
    position: int = 0
    is_whole: bool = True
    """Whether the message is in its note, for the reaper."""

    def grant(self, *, is_whole: bool = True) -> Record:
        return Record(self.fence + 1, True, False, self.position, is_whole)

    def release(self, position: int = 0) -> Record:
        return Record(self.fence, False, False, max(self.position, position), self.is_whole)


class Beat(NamedTuple):
    at: str = "idle"
    fence: int = 0
    holds: bool = False
    """By its own clock, which is never later than the store's."""


class Worker(NamedTuple):
    at: str = "idle"
    fence: int = 0
    holds: bool = False


class State(NamedTuple):
    beats: tuple[Beat, ...]
    workers: tuple[Worker, ...]
    entry: Record = Record()
    run: Record = Record()
    queue: int = 0
    orphans: int = 0
    """Messages of workers that died: unacknowledged, and so delivered again."""
    reaped: int = 0
    """The fence of the last grant that was published again."""
    written: int = 0
    """The largest fence that an effect was written with."""
    published: int = 0
    started: int = 0
    concluded: int = 0
    letters: int = 0
    excuses: int = 0
    """Executions that lost their lease, or were killed, between their last look and their record."""
    was_finished: bool = False
    began_after_end: bool = False
    overwrote: bool = False
    faults: int = 0
    """How many are left."""


@dataclass(frozen=True)
class Protocol:
    """`bug`: the wrong order, or the check that is left out, if any."""

    beats: int = 2
    workers: int = 2
    faults: int = 2
    task_fails: bool = False
    bug: str = ""

    def first(self) -> State:
        return State((Beat(),) * self.beats, (Worker(),) * self.workers, faults=self.faults)

    # All that can happen in a state

    def steps(self, state: State) -> Iterator[Step[State]]:
        for at, beat in enumerate(state.beats):
            yield from self._beat(state, at, beat)
        for at, worker in enumerate(state.workers):
            yield from self._worker(state, at, worker)
        yield from self._reaper(state)
        yield from self._broker(state)
        yield from self._time(state)

    # beat/dispatch.py

    def _beat(self, state: State, at: int, beat: Beat) -> Iterator[Step[State]]:
        def to(place: str, fence: int = beat.fence, holds: bool = beat.holds, **more: object) -> State:
            return _with_beat(state, at, Beat(place, fence, holds))._replace(**more)  # type: ignore[arg-type]

        def idle(**more: object) -> State:
            return to("idle", 0, False, **more)

        entry = state.entry
        mine = entry.fence == beat.fence
        match beat.at:
            case "idle":
                if not entry.position and not entry.is_held:
                    granted = entry.grant()
                    yield Step("acquire entry", to("claimed", granted.fence, True, entry=granted))
            case "claimed" if self.bug == "record before publish":
                yield Step("record", to("recorded", entry=entry.release(1)))
            case "recorded":
                yield Step("publish", _published(idle()))
            case "claimed":
                yield Step("ensure_held", to("sure") if beat.holds else idle())
            case "sure":
                yield Step("publish", _published(to("published")))
            case "published":
                # Refused where somebody was granted it since: then that one records.
                yield Step("record", idle(entry=entry.release(1) if mine else entry))
        if beat.at in ("sure", "recorded") and state.faults:
            # The broker is away, or its answer is: nobody knows whether it has the message.
            let_go = entry.release() if mine else entry
            fewer = state.faults - 1
            yield Step("publish fails", idle(entry=let_go, faults=fewer), is_fault=True)
            yield Step("confirm lost", _published(idle(entry=let_go, faults=fewer)), is_fault=True)
        if beat.at != "idle" and state.faults:
            yield Step("kill beat", idle(faults=state.faults - 1), is_fault=True)

    # worker/: execution, attempt, request, last_letter

    def _worker(self, state: State, at: int, worker: Worker) -> Iterator[Step[State]]:
        def to(
            place: str, fence: int = worker.fence, holds: bool = worker.holds, **more: object
        ) -> State:
            return _with_worker(state, at, Worker(place, fence, holds))._replace(**more)  # type: ignore[arg-type]

        run = state.run
        mine = run.fence == worker.fence or self.bug == "release without fence check"
        match worker.at:
            case "idle" if state.queue:
                yield Step("receive", to("received", 0, False, queue=state.queue - 1))
            case "received":
                yield from self._begin(state, to)
            case "running":
                overwrote = state.overwrote or (worker.fence < state.written and worker.holds)
                written = max(state.written, worker.fence)
                yield Step("body", to("ended", overwrote=overwrote, written=written))
            case "ended" if worker.holds or self.bug == "no look after the body":
                place = "failing" if self.task_fails else "sure"
                yield Step("ensure_run_not_lost", to(place))
            case "ended" if run.is_expired and run.fence == worker.fence:
                # Nobody was granted it since: it is acquired anew.
                anew = run.grant()
                place = "failing" if self.task_fails else "sure"
                yield Step("reclaim", to(place, anew.fence, True, run=anew))
            case "ended":
                # Its successor does all that is left. The message waits.
                given_up = run.release() if mine else run
                yield Step("keep lost", to("received", 0, False, run=given_up))
            case "sure":
                yield Step("conclude", to("concluded", concluded=state.concluded + 1))
            case "concluded":
                position = 0 if self.bug == "no done marker" else FINISHED
                yield Step("finish", to("over", 0, False, **_released(state, mine, position)))
            case "failing":
                due = _released(state, mine, LETTER_DUE, is_end=False)
                yield Step("record letter due", to("owing", 0, False, **due))
            case "owing" if self.bug == "acknowledge before letter":
                yield Step("acknowledge", to("owing, acknowledged"))
            case "owing" | "owing, acknowledged":
                if run.position == FINISHED:
                    yield Step("letter was sent", to("over", 0, False))
                elif not run.is_held:
                    granted = run.grant(is_whole=False)
                    place = worker.at.replace("owing", "sending")
                    yield Step("acquire letter", to(place, granted.fence, True, run=granted))
            case "sending" | "sending, acknowledged":
                yield Step("send letter", to("sent", letters=state.letters + 1))
            case "sent":
                yield Step("finish", to("over", 0, False, **_released(state, mine, FINISHED)))
            case "over":
                yield Step("acknowledge", to("idle", 0, False))
        if worker.at != "idle" and state.faults:
            has_message = "acknowledged" not in worker.at
            orphans = state.orphans + has_message
            excuses = state.excuses + (worker.at == "concluded")
            dead = to("idle", 0, False, orphans=orphans, excuses=excuses, faults=state.faults - 1)
            yield Step("kill worker", dead, is_fault=True)

    def _begin(self, state: State, to: Callable[..., State]) -> Iterator[Step[State]]:
        run = state.run
        if run.position == FINISHED:
            yield Step("ignore copy", to("over"))
        elif run.position == LETTER_DUE:
            yield Step("ignore copy, letter is due", to("owing"))
        elif not run.is_held or self.bug == "begin without lease":
            if run.is_expired and self.bug == "no takeover":
                return
            granted = run.grant()
            yield Step(
                "begin",
                to(
                    "running",
                    granted.fence,
                    True,
                    run=granted,
                    started=state.started + 1,
                    began_after_end=state.began_after_end or state.was_finished,
                ),
            )

    # beat/reaper.py

    def _reaper(self, state: State) -> Iterator[Step[State]]:
        run = state.run
        if run.is_expired and run.is_whole and run.fence > state.reaped:
            yield Step("reap", state._replace(queue=state.queue + 1, reaped=run.fence))

    # What is not ours

    def _broker(self, state: State) -> Iterator[Step[State]]:
        if state.orphans:
            again = state._replace(orphans=state.orphans - 1, queue=state.queue + 1)
            yield Step("redeliver", again)
        is_out = any(worker.at not in ("idle", "over") for worker in state.workers)
        if state.faults and is_out:
            # The visibility timeout of Redis: its worker lives, and has it still.
            copy = state._replace(queue=state.queue + 1, faults=state.faults - 1)
            yield Step("redeliver of a living worker", copy, is_fault=True)

    def _time(self, state: State) -> Iterator[Step[State]]:
        """A lease runs out: in the end if its holder is dead, at any time if it sleeps or is cut off.
        The holder knows that not later than the store."""
        if state.entry.is_held:
            beats = tuple(
                beat._replace(holds=False) if beat.fence == state.entry.fence else beat
                for beat in state.beats
            )
            entry = state.entry._replace(is_held=False, is_expired=True)
            is_fault = beats != state.beats
            if state.faults or not is_fault:
                expired = state._replace(beats=beats, entry=entry, faults=state.faults - is_fault)
                yield Step("entry runs out", expired, is_fault)
        if state.run.is_held:
            workers = tuple(
                worker._replace(holds=False) if worker.fence == state.run.fence else worker
                for worker in state.workers
            )
            run = state.run._replace(is_held=False, is_expired=True)
            is_fault = workers != state.workers
            if state.faults or not is_fault:
                late = [worker for worker in state.workers if worker.fence == state.run.fence]
                excuses = state.excuses + any(worker.at in ("sure", "concluded") for worker in late)
                expired = state._replace(workers=workers, run=run, excuses=excuses)
                yield Step("run runs out", expired._replace(faults=state.faults - is_fault), is_fault)

    # What must be

    def wrong_always(self, state: State) -> str | None:
        holders = [worker for worker in state.workers if worker.at == "running" and worker.holds]
        if len(holders) > 1:
            return "two executions hold the run"
        if state.began_after_end:
            return "a finished run began again"
        if state.overwrote:
            return "a holder wrote with an older fence than another before it"
        if state.concluded > 1 + state.excuses:
            return "the success of a run was told twice"
        hurt = self.faults - state.faults
        if not hurt and (state.published > 1 or state.started > 1 or state.concluded > 1):
            return "something happened twice, and nobody was hurt"
        return None

    def wrong_at_rest(self, state: State) -> str | None:
        """When no more faults come, this is how it ends."""
        if not state.entry.position or not state.published:
            return "the slot is lost"
        if self.task_fails and not state.letters:
            return "the letter is lost"
        if not state.was_finished or not state.started:
            return "the run is lost"
        if not self.task_fails and not state.concluded:
            return "nobody was told of the success"
        if state.queue or state.orphans or any(worker.at != "idle" for worker in state.workers):
            return "a message is stuck"
        return None


def _with_beat(state: State, at: int, beat: Beat) -> State:
    # Which one it is does not matter: sorted, so that mirrored states are one.
    return state._replace(beats=tuple(sorted((*state.beats[:at], beat, *state.beats[at + 1 :]))))


def _with_worker(state: State, at: int, worker: Worker) -> State:
    others = (*state.workers[:at], *state.workers[at + 1 :])
    return state._replace(workers=tuple(sorted((worker, *others))))


def _published(state: State) -> State:
    return state._replace(queue=state.queue + 1, published=state.published + 1)


def _released(state: State, is_mine: bool, position: int, *, is_end: bool = True) -> dict[str, object]:
    if not is_mine:
        return {}
    return {"run": state.run.release(position), "was_finished": state.was_finished or is_end}
