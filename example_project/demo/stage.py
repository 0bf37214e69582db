"""What the demo sees of the shop, and how it tells it."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Final, NamedTuple, TypeVar

from . import records
from .crew import Crew
from .records import Count, Work

T = TypeVar("T")

BOLD: Final = 1
DIM: Final = 2
RED: Final = 31
COLOURS: Final = (36, 33, 35, 32, 34)
INDENT: Final = " " * 3
CELLS_A_ROW: Final = 7
PUBLISHED: Final = re.compile(r"slot_published entry='tally' slot=(\S+)\n")


class DemoFailed(Exception):
    """Something did not happen that had to."""


class Publication(NamedTuple):
    slot: datetime
    beat: str


class Stage:
    """All is read from what the shop's processes left: their logs, and the journal in the database."""

    PATIENCE_S = 40.0

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self.published: list[Publication] = []
        self.counted: list[Count] = []
        """The executions of slots, more than one of a slot if it was repeated."""
        self.work: list[Work] = []
        self._told = 0
        self._slots_told: set[datetime] = set()
        self._cells_in_row = 0

    # Seeing

    def wait_for(self, what: str, fact: Callable[[], T | None]) -> T:
        """Wait until `fact` is true, and return it. What is seen meanwhile is printed."""
        give_up_at = time.monotonic() + self.PATIENCE_S
        while True:
            self.look()
            if found := fact():
                return found
            if fallen := list(self._crew.fallen()):
                words = self._crew.last_words(fallen, 60)
                raise DemoFailed(f"{', '.join(fallen)} exited\n{words}")
            if time.monotonic() > give_up_at:
                words = self._crew.last_words(self._crew.living, 8)
                raise DemoFailed(f"waited {self.PATIENCE_S:g} s for {what}\n{words}")
            time.sleep(0.03)

    def look(self) -> None:
        self.work, self.counted = records.journal(), records.counts()
        self.published = [
            Publication(datetime.fromisoformat(slot), beat)
            for beat in self._crew.beats
            for slot in PUBLISHED.findall(self._crew.log(beat))
        ]
        self._tell_slots()
        for each in self.work[self._told :]:
            self.say(f"{self._name(each.worker)} {each.what} {self._about(each)}")
        self._told = len(self.work)

    def done(self, what: str, about: str) -> list[Work]:
        return [each for each in self.work if (each.what, each.about) == (what, about)]

    # Telling

    def narrate(self, text: str) -> None:
        self._end_row()
        print(f"\n{coloured(text, BOLD)}", flush=True)

    def say(self, text: str) -> None:
        self._end_row()
        print(f"{INDENT}{text}", flush=True)

    def warn(self, text: str) -> None:
        self.say(coloured(text, RED))

    def _tell_slots(self) -> None:
        beats = dict(self.published)
        for slot, worker in self.counted:
            if slot in beats and slot not in self._slots_told:
                self._slots_told.add(slot)
                self._tell_slot(slot, beats[slot], worker)

    def _tell_slot(self, slot: datetime, beat: str, worker: str) -> None:
        if self._cells_in_row == CELLS_A_ROW:
            self._end_row()
        # On one line, each as soon as it is known.
        before = "  " if self._cells_in_row else INDENT
        print(before + cell(f"{slot:%S}", self._name(beat), self._name(worker)), end="", flush=True)
        self._cells_in_row += 1

    def _end_row(self) -> None:
        if self._cells_in_row:
            print(flush=True)
        self._cells_in_row = 0

    def _name(self, name: str) -> str:
        return coloured(name, COLOURS[sum(name.encode()) % len(COLOURS)])

    @staticmethod
    def _about(work: Work) -> str:
        more = f"fence {work.fence}" if "export" in work.what else f"attempt {work.attempt}"
        return f"{work.about}, {more}"


def cell(second: str, beat: str, worker: str) -> str:
    arrow = "→" if "utf" in (sys.stdout.encoding or "").lower() else ">"
    return f"{coloured(f':{second}', DIM)} {beat}{arrow}{worker}"


def coloured(text: str, code: int) -> str:
    """In colour on a terminal, unless the user wants none: https://no-color.org"""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\033[{code}m{text}\033[0m"
