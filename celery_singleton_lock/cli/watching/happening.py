"""What happened: between two looks, and as workers told it. No I/O but to ask how a run ended."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from .looking import Look

KEPT: Final = 200
ENDS_KEPT: Final = 5000
"""How many runs whose end was told are remembered, so that no look tells it again."""
TOLD_ONE_BY_ONE: Final = 5
"""More slots than this at one look are told as a number."""


@dataclass(frozen=True, slots=True)
class Happening:
    at: datetime
    text: str
    colour: str = ""
    run: str = ""
    """Whose end this is."""
    is_told: bool = False
    """By its worker, which knows it better than a look."""


class Diary:
    def __init__(self) -> None:
        self._last: Look | None = None
        self._lines: deque[Happening] = deque(maxlen=KEPT)
        self._ended: OrderedDict[str, None] = OrderedDict()

    def take_in(self, look: Look) -> Sequence[Happening]:
        """All that is known, latest first."""
        if self._last is not None:
            for happening in _between(self._last, look):
                if not happening.run or happening.run not in self._ended:
                    self._lines.appendleft(happening)
        self._last = look
        return list(self._lines)

    def hear(self, told: Iterable[Happening]) -> Sequence[Happening]:
        """What workers told, oldest first; all that is known, latest first."""
        for happening in told:
            # A look may have been quicker, and knows less.
            guesses = [each for each in self._lines if each.run == happening.run and not each.is_told]
            for guess in guesses:
                self._lines.remove(guess)
            self._lines.appendleft(happening)
            self._ended[happening.run] = None
            if len(self._ended) > ENDS_KEPT:
                self._ended.popitem(last=False)
        return list(self._lines)


def _between(last: Look, look: Look) -> Iterator[Happening]:
    yield from _members(last, look)
    yield from _slots(last, look)
    yield from _pauses(last, look)
    yield from _locks(last, look)
    if last.letters is not None and look.letters is not None and look.letters != last.letters:
        more = look.letters - last.letters
        told = f"{more} more dead letters" if more > 0 else f"{-more} dead letters fewer"
        yield Happening(look.now, told, "red" if more > 0 else "green")


def _members(last: Look, look: Look) -> Iterator[Happening]:
    for member in sorted(set(look.members) - set(last.members)):
        yield Happening(look.now, f"beat {short(member)} came", "green")
    for member in sorted(set(last.members) - set(look.members)):
        yield Happening(look.now, f"beat {short(member)} is gone", "red")


def _slots(last: Look, look: Look) -> Iterator[Happening]:
    before = {entry.name: entry.last_slot for entry in last.entries}
    published = [
        entry
        for entry in look.entries
        if entry.last_slot and entry.name in before and entry.last_slot != before[entry.name]
    ]
    if len(published) > TOLD_ONE_BY_ONE:
        yield Happening(look.now, f"published: {len(published)} entries")
        return
    for entry in published:
        slot = entry.last_slot.strftime("%H:%M:%S") if entry.last_slot else ""
        yield Happening(look.now, f"published {entry.name} of {slot}")


def _pauses(last: Look, look: Look) -> Iterator[Happening]:
    before = {entry.name: entry.is_paused for entry in last.entries}
    for entry in look.entries:
        if entry.name not in before:
            yield Happening(look.now, f"added {entry.name}", "cyan")
        elif entry.is_paused != before[entry.name]:
            done = f"paused by {entry.paused_by}" if entry.is_paused else "resumed"
            yield Happening(look.now, f"{entry.name} {done}", "cyan")
    for name in sorted(before.keys() - {entry.name for entry in look.entries}):
        yield Happening(look.now, f"removed {name}", "cyan")


def _locks(last: Look, look: Look) -> Iterator[Happening]:
    # The threads read at their own pace: the same reading twice tells nothing.
    if last.locks is look.locks:
        return
    before = {lock.key: lock for lock in last.locks}
    now = {lock.key: lock for lock in look.locks}
    for key in sorted(now.keys() - before.keys()):
        yield Happening(look.now, f"started {now[key].name} on {now[key].holder}", "green")
    for key in now.keys() & before.keys():
        name = now[key].name
        if now[key].state is not before[key].state:
            yield Happening(look.now, f"{name}: now {now[key].state.value}", "yellow")
        elif now[key].fence != before[key].fence:
            yield Happening(look.now, f"{name}: taken by {now[key].holder}", "yellow")
        elif now[key].overdue_by and not before[key].overdue_by:
            yield Happening(look.now, f"{name} on {now[key].holder} is overdue", "red")
    gone = sorted(before.keys() - now.keys())
    for key, record in zip(gone, look.outcome_of(gone), strict=False):
        outcome = (record.outcome if record else None) or "ended"
        colour = "" if outcome in ("succeeded", "ended") else "red"
        run = str(before[key].note.get("run") or "") if before[key].kind == "run" else ""
        text = f"{outcome}: {before[key].name} on {before[key].holder}"
        yield Happening(look.now, text, colour, run=run)


def short(member: str) -> str:
    """A replica by its host and process."""
    return ":".join(member.split(":")[:2])
