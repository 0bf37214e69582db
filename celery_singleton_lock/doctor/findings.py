"""What a check is, and what it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .patient import Patient


class Level(Enum):
    OK = "ok"
    WARNING = "warning"
    """It works today; some fault, or some load, will make it a problem."""
    PROBLEM = "problem"
    """Runs are lost, late, or executed twice, or will be."""
    UNKNOWN = "unknown"
    """It could not be found out."""
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `reason` and `remedy` are empty where all is well."""

    check: str
    level: Level
    reason: str = ""
    remedy: str = ""
    title: str = ""
    """What the check looks for, as a statement that should hold."""

    @property
    def facts(self) -> dict[str, Any]:
        """For JSON: keys may be added, and none is renamed."""
        return {
            "check": self.check,
            "level": self.level.value,
            "title": self.title,
            "reason": self.reason,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a check yields."""

    level: Level
    reason: str
    remedy: str


def problem(reason: str, remedy: str) -> Trouble:
    return Trouble(Level.PROBLEM, reason, remedy)


def warning(reason: str, remedy: str) -> Trouble:
    return Trouble(Level.WARNING, reason, remedy)


class NotApplicable(Exception):
    """Raised by a check, or by a question to the patient, where there is nothing to look at."""


Diagnosis = Callable[["Patient"], Iterable[Trouble]]


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    title: str
    diagnose: Diagnosis


_CHECKS: Final[list[Check]] = []


def check(name: str) -> Callable[[Diagnosis], Diagnosis]:
    """Registers a check. Its docstring is the statement that should hold."""

    def register(diagnose: Diagnosis) -> Diagnosis:
        title = (diagnose.__doc__ or "").strip().splitlines()[0].rstrip(".")
        _CHECKS.append(Check(name, title, diagnose))
        return diagnose

    return register


def all_checks() -> Iterator[Check]:
    """In the order in which they are told."""
    return iter(_CHECKS)


def some(names: Iterable[str], most: int = 5) -> str:
    """A few of many, for a sentence."""
    listed = list(names)
    text = ", ".join(listed[:most])
    return f"{text} and {len(listed) - most} more" if len(listed) > most else text


def said(span: timedelta) -> str:
    """To the second."""
    return str(timedelta(seconds=round(span.total_seconds())))
