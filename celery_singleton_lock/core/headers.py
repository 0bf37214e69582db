"""The headers that a message of ours carries beside Celery's own."""

from __future__ import annotations

from typing import Final

ENTRY: Final = "singleton_entry"
SLOT: Final = "singleton_slot"
GENERATION: Final = "singleton_generation"
"""How often the run was replayed from the dead letters. Not there: never."""
LETTER: Final = "singleton_letter"
"""Why a message lies among the dead letters. Nowhere else."""
