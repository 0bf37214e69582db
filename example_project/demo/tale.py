"""What was recorded of the shop, counted and judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from .records import Work
from .stage import Publication

SECOND: Final = timedelta(seconds=1)
# As the shop's tasks put it.
BEGINS: Final = "begins to export"
HAS_EXPORTED: Final = "has exported"
TOO_LATE: Final = "is refused with its late export of"
TRIES: Final = "tries to send"
HAS_SENT: Final = "has sent"
MONDAY: Final = "monday"
TUESDAY: Final = "tuesday"
INVOICE: Final = "invoice 7"


@dataclass
class Tale:
    """What was recorded. All that the summary says is computed from it."""

    published: list[Publication] = field(default_factory=list)
    executed: list[datetime] = field(default_factory=list)
    """The slot of each execution."""
    calm_until: datetime | None = None
    """Up to this slot nobody was hurt: none may be published twice."""
    work: list[Work] = field(default_factory=list)
    stopped: str = ""
    fence_written: int = 0
    """That of the export which the stopped worker wanted to replace."""
    letters: int = 0
    letters_left: int = 0
    orders: int = 0
    emails: int = 0

    def done(self, what: str, about: str) -> list[Work]:
        return [each for each in self.work if (each.what, each.about) == (what, about)]

    @property
    def due(self) -> list[datetime]:
        """Every second from the first slot that was published to the last that was executed."""
        first, last = min(self.slots_published), max(self.executed)
        return [first + n * SECOND for n in range((last - first) // SECOND + 1)]

    @property
    def slots_published(self) -> set[datetime]:
        # One may be on its way when we look.
        return {each.slot for each in self.published if each.slot <= max(self.executed)}

    @property
    def missed(self) -> list[datetime]:
        return sorted({*self.due} - {*self.executed})

    @property
    def duplicates(self) -> int:
        return len(self.executed) - len(set(self.executed))

    @property
    def copies(self) -> int:
        return len(self.published) - len({each.slot for each in self.published})

    @property
    def copies_in_calm(self) -> list[datetime]:
        calm = Counter(each.slot for each in self.published)
        return [slot for slot, n in calm.items() if n > 1 and slot <= (self.calm_until or slot)]


def summary(tale: Tale) -> str:
    begun = sum(each.what == BEGINS for each in tale.work)
    exported = sum(each.what == HAS_EXPORTED for each in tale.work)
    refused = sum(each.what == TOO_LATE for each in tale.work)
    tries = len(tale.done(TRIES, INVOICE))
    return (
        f"slots     {len(tale.due)} due, {len(tale.slots_published)} published, copies {tale.copies}\n"
        f"runs      {len(tale.executed)} executed, duplicates {tale.duplicates}, "
        f"missed {len(tale.missed)}\n"
        f"exports   {exported} written, {begun - exported} taken over, {refused} late write refused\n"
        f"partner   {len(tale.done(HAS_SENT, INVOICE))} sent in {tries} attempts, "
        f"{tale.letters} dead letter, {tale.letters_left} left\n"
        f"orders    {tale.orders} placed, {tale.emails} e-mails sent"
    )


def faults(tale: Tale) -> Iterator[str]:
    """What did not go as promised."""
    if tale.missed:
        yield f"missed: {', '.join(f'{slot:%H:%M:%S}' for slot in tale.missed)}"
    if tale.duplicates:
        yield f"executed more than once: {tale.duplicates}"
    if tale.copies_in_calm:
        yield "slots were published twice, although nobody was hurt"
    for day in (MONDAY, TUESDAY):
        begun, written = tale.done(BEGINS, day), tale.done(HAS_EXPORTED, day)
        if [each.fence for each in begun] != sorted({each.fence for each in begun}):
            yield f"the fences of {day} do not grow"
        if [each.fence for each in written] != [each.fence for each in begun[-1:]]:
            yield f"{day} was not exported once, by the last who began"
    if [each.worker for each in tale.done(TOO_LATE, TUESDAY)] != [tale.stopped]:
        yield f"it was not {tale.stopped} who was refused"
    if [tale.fence_written] != [each.fence for each in tale.done(BEGINS, TUESDAY)[-1:]]:
        yield "the late write replaced its successor's"
    if len(tale.done(HAS_SENT, INVOICE)) != 1 or tale.letters != 1 or tale.letters_left:
        yield "the invoice was not replayed once"
    if tale.orders != tale.emails:
        yield f"{tale.orders} orders were placed, and {tale.emails} e-mails sent"
