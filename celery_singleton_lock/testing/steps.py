"""Steps of the protocol at which a process may be made to die: what is not yet done then is the test.

The process that is to die is started with the environment of `KillAt`. It needs no change: a
``sitecustomize`` of ours, first on its path, arms it.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "SINGLETON_KILL_AT"
_ARMED: Final = Path(__file__).parent / "armed"


@dataclass(frozen=True, slots=True)
class Step:
    """A moment: just before, or just after, a method of ours is called."""

    meaning: str
    module: str
    owner: str
    method: str
    is_after: bool = False


STEPS: Final = {
    "claimed": Step(
        "beat has the lease of a slot, and has published nothing",
        "celery_singleton_lock.beat.dispatch", "Dispatch", "_publish_all",
    ),
    "published": Step(
        "beat has published a slot, and not recorded it",
        "celery_singleton_lock.beat.dispatch", "Dispatch", "_advance",
    ),
    "recorded": Step(
        "beat has recorded a slot as published",
        "celery_singleton_lock.beat.dispatch", "Dispatch", "_advance", is_after=True,
    ),
    "begun": Step(
        "a worker has the leases of a run, and its body is about to begin",
        "celery_singleton_lock.worker.attempt", "Attempt", "call",
    ),
    "executed": Step(
        "the body has ended well, and its result is not stored",
        "celery_singleton_lock.worker.attempt", "Attempt", "call", is_after=True,
    ),
    "concluded": Step(
        "the result is stored, and the end of the run is not recorded",
        "celery_singleton_lock.worker.attempt", "Attempt", "end",
    ),
    "finished": Step(
        "the end of the run is recorded, and its message is not acknowledged",
        "celery_singleton_lock.worker.attempt", "Attempt", "end", is_after=True,
    ),
    "claiming": Step(
        "a worker takes a run over, and has not claimed it in the ledger",
        "celery_singleton_lock.ledger.claims", "Claims", "take",
    ),
    "claim taken": Step(
        "a worker has claimed a run in the ledger, and its body is about to begin",
        "celery_singleton_lock.ledger.claims", "Claims", "take", is_after=True,
    ),
    "effects written": Step(
        "the rows of a `transaction` are written, and the end of the run is not beside them",
        "celery_singleton_lock.worker.effects", "Transaction", "_finish",
    ),
    "effects claimed": Step(
        "the rows and the end of the run are written, and not committed",
        "celery_singleton_lock.worker.effects", "Transaction", "_finish", is_after=True,
    ),
    "effects committed": Step(
        "a `transaction` is committed, and its body has not ended",
        "celery_singleton_lock.worker.effects", "Transaction", "__exit__", is_after=True,
    ),
    "letter due": Step(
        "a run has failed for good, and its letter is not sent",
        "celery_singleton_lock.recovery.dead_letters", "DeadLetters", "send",
    ),
    "letter sent": Step(
        "the letter is sent, and the message is not acknowledged",
        "celery_singleton_lock.recovery.dead_letters", "DeadLetters", "send", is_after=True,
    ),
}  # fmt: skip


class KillAt:
    """Has the first process die that comes to a step: each test needs one of its own.

    ``environment("published")`` is for the process, and for others beside it: only one of them dies.
    With several steps one dies at each.
    """

    def __init__(self, place: Path) -> None:
        self._place = place

    def environment(self, *steps: str) -> dict[str, str]:
        """What to start the process with, beside its own environment."""
        for step in steps:
            if step not in STEPS:
                raise ValueError(f"there is no step {step!r}; there are: {', '.join(STEPS)}")
        path = [str(_ARMED), *filter(None, [os.environ.get("PYTHONPATH")])]
        marks = {step: str(self._mark(step)) for step in steps}
        return {VARIABLE: json.dumps(marks), "PYTHONPATH": os.pathsep.join(path)}

    def has_happened(self, step: str) -> bool:
        return self._mark(step).exists()

    def _mark(self, step: str) -> Path:
        return self._place / f"died-{step.replace(' ', '-')}"


def arm(name: str, mark: Path) -> None:
    """Let this process, or a child of it, die at the step, if it is the first to make `mark`."""
    step = STEPS[name]
    owner = getattr(importlib.import_module(step.module), step.owner)
    original: Callable[..., Any] = getattr(owner, step.method)

    @functools.wraps(original)
    def armed(*args: Any, **kwargs: Any) -> Any:
        if not step.is_after:
            _die_once(mark)
        answer = original(*args, **kwargs)
        if step.is_after:
            _die_once(mark)
        return answer

    setattr(owner, step.method, armed)


def _die_once(mark: Path) -> None:
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def arm_from_environment() -> None:
    marks: dict[str, str] = json.loads(os.environ.get(VARIABLE) or "{}")
    for name, mark in marks.items():
        arm(name, Path(mark))
