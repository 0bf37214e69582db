"""The view as lines of a terminal. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from celery_singleton_lock.cli.printing import Shade, cut, printable, shaded, table_lines
from celery_singleton_lock.cli.scheduling.telling import is_late, spoken_schedule, state_of
from celery_singleton_lock.cli.times import ago, spoken

from .happening import Happening, short

if TYPE_CHECKING:
    from celery_singleton_lock.beat.entry_state import EntryState
    from celery_singleton_lock.recovery.locks import Lock

    from .looking import Look

LONGEST_LIST: Final = 10
"""Of a section, where there is no height to keep to."""
COMING: Final = ("COMING", "STATE", "ENTRY", "TASK", "SCHEDULE")
RUNNING: Final = ("RUNNING", "LEFT", "OVERDUE", "TASK", "HOLDER", "ATTEMPT")


@dataclass(frozen=True, slots=True)
class View:
    """`look` is None before the first one. `trouble`: why there is no newer one."""

    look: Look | None
    happenings: Sequence[Happening] = ()
    trouble: str = ""

    def without_store(self, why: str) -> View:
        return replace(self, trouble=why)


def draw(view: View, *, width: int, height: int | None, has_colour: bool) -> list[str]:
    """No line is wider than `width`, and there are at most `height` of them."""

    def paint(text: str, colour: str) -> str:
        return shaded(Shade(cut(printable(text), width), colour), has_colour=has_colour)

    look = view.look
    lines = []
    if view.trouble:
        lines.append(paint(f"STORE AWAY: {view.trouble}", "red"))
    if look is None:
        return lines
    lines += [paint(text, colour) for text, colour in _head(look)]
    room = None if height is None else height - len(lines)
    coming, running, told = _share(room, len(look.entries), len(look.locks), len(view.happenings))
    entries = sorted(look.entries, key=lambda entry: _urgency(entry, look))
    sections = (
        (COMING, [_entry(each, look) for each in entries[: coming + 1]], len(entries), coming),
        (RUNNING, [_lock(each) for each in look.locks[: running + 1]], len(look.locks), running),
    )
    for titles, rows, count, most in sections:
        lines.append("")
        lines += table_lines(titles, rows[:most], width=width, has_colour=has_colour)
        if count > most:
            lines[-1] = paint(f"... and {count - most + 1} more", "dim")
    if view.happenings and told > 0:
        lines += ["", paint("HAPPENED", "bold")]
        for each in view.happenings[:told]:
            lines.append(paint(f"{each.at:%H:%M:%S}  {each.text}", each.colour))
    return lines if height is None else lines[:height]


def _head(look: Look) -> list[tuple[str, str]]:
    late = [entry for entry in look.entries if is_late(entry, look.now)]
    overdue = [lock for lock in look.locks if lock.overdue_by]
    paused = sum(entry.is_paused for entry in look.entries)
    letters = "?" if look.letters is None else look.letters
    counts = (
        f"entries {len(look.entries)}  paused {paused}  late {len(late)}  jobs {look.jobs}  "
        f"running {len(look.locks)}  overdue {len(overdue)}  letters {letters}"
    )
    beats = ", ".join(map(short, look.members)) or "NONE ALIVE: nothing is published"
    is_bad = bool(late or overdue or look.letters)
    return [
        (f"{look.app or 'app'}  {look.now:%Y-%m-%d %H:%M:%S}Z  {look.store}   (q ends)", "bold"),
        (f"beats {len(look.members)}: {beats}", "green" if look.members else "red"),
        (counts, "yellow" if is_bad else ""),
    ]


def _share(room: int | None, entries: int, locks: int, happenings: int) -> tuple[int, int, int]:
    """How many lines each section may have, under its blank line and its title. What one does not need
    the others get."""
    if room is None:
        return LONGEST_LIST, LONGEST_LIST, LONGEST_LIST
    room = max(0, room - (6 if happenings else 4))
    running = max(1, min(locks, room // 3))
    coming = max(1, min(entries, (room - running) // (2 if happenings else 1)))
    return coming, running, max(0, room - running - coming)


def _urgency(entry: EntryState, look: Look) -> tuple[int, object, str]:
    """Late ones first, then by what comes next, then those that do not come."""
    if is_late(entry, look.now):
        return 0, entry.due_since, entry.name
    if entry.next_slot is not None:
        return 1, entry.next_slot, entry.name
    return 2, look.now, entry.name


def _entry(entry: EntryState, look: Look) -> tuple[object, ...]:
    now = look.now
    return (
        ago(entry.next_slot, now).removeprefix("in "),
        state_of(entry, now),
        entry.name,
        entry.task,
        spoken_schedule(entry),
    )


def _lock(lock: Lock) -> tuple[object, ...]:
    return (
        spoken(lock.age),
        spoken(lock.remaining) if lock.remaining else Shade(lock.state.value, "yellow"),
        Shade(spoken(lock.overdue_by), "red") if lock.overdue_by else None,
        lock.name,
        lock.holder,
        lock.note.get("attempt"),
    )
