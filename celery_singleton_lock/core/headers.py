"""The headers that a message of ours carries beside Celery's own."""

from __future__ import annotations

from datetime import datetime
from typing import Final

ENTRY: Final = "singleton_entry"
SLOT: Final = "singleton_slot"
GENERATION: Final = "singleton_generation"
"""How often the run was replayed from the dead letters. Not there: never."""
AGAIN: Final = "singleton_again"
"""It was published again: the worker of its run let its lease run out, or nobody has started it."""
IN_TURN: Final = "singleton_in_turn"
"""It fills a gap, perhaps with others of its entry: while one of them runs the others wait."""
LETTER: Final = "singleton_letter"
"""Why a message lies among the dead letters. Nowhere else."""


def slot_text(slot: datetime) -> str:
    """A slot, in UTC, as it stands in a header."""
    return slot.isoformat().replace("+00:00", "Z")


def read_slot(value: object) -> datetime | None:
    """The slot as it stands in a header; None where there is none, or one that is no time in a zone."""
    try:
        slot = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return None if slot is None or slot.tzinfo is None else slot
