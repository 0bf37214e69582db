"""Checks of what is running, and of what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from .findings import Trouble, check, problem, said, some, warning
from .patient import LETTERS_READ, Patient

REAPED_WITHIN: Final = timedelta(minutes=1)
LATELY: Final = timedelta(hours=1)
MANY_LATELY: Final = 10


@check("runs-overdue")
def runs_are_within_what_is_expected(patient: Patient) -> Iterator[Trouble]:
    """No run takes longer than was expected of it."""
    overdue = [lock for lock in patient.locks if lock.overdue_by and lock.kind == "run"]
    if overdue:
        worst = max(overdue, key=lambda lock: lock.overdue_by or timedelta(0))
        yield warning(
            f"runs take longer than was expected (expect_within): {len(overdue)} of "
            f"{some(sorted({str(lock.note.get('task')) for lock in overdue}))}; {worst.key} on "
            f"{worst.holder} by {said(worst.overdue_by or timedelta(0))}",
            "see what it waits for: celery -A app inspect active, py-spy dump --pid ...; then "
            "`celery -A app singleton locks --overdue`",
        )


@check("runs-taken-over")
def runs_of_dead_workers_are_taken_over(patient: Patient) -> Iterator[Trouble]:
    """Runs of workers that died are taken over."""
    now = patient.store.now()
    left = [each for each in patient.store.expired() if each.until and now - each.until > REAPED_WITHIN]
    if left:
        yield problem(
            f"{len(left)} runs lost their worker more than {REAPED_WITHIN} ago, and nobody has taken "
            f"them over: {some(each.key for each in left)}",
            "see that a beat lives, and that workers consume their queues",
        )


@check("dead-letters")
def there_are_no_dead_letters(patient: Patient) -> Iterator[Trouble]:
    """There are no dead letters."""
    letters = patient.letters
    if not letters:
        return
    more = "at least " if len(letters) == LETTERS_READ else ""
    reasons = Counter(f"{letter.task or '?'}: {letter.reason}" for letter in letters)
    told = some(f"{count} x {reason}" for reason, count in reasons.most_common())
    lately = [letter for letter in letters if datetime.now(UTC) - letter.dead_at < LATELY]
    tell = problem if len(lately) >= MANY_LATELY else warning
    yield tell(
        f"there are {more}{len(letters)} dead letters, {len(lately)} of the last hour: {told}",
        "celery -A app singleton dead-letters list; correct the cause, then replay or purge them",
    )
