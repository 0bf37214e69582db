"""What a worker tells of a run to whoever listens, from both of its processes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from celery_singleton_lock.core import facts, headers
from celery_singleton_lock.core.redaction import redact
from celery_singleton_lock.observability.listening import listeners_of
from celery_singleton_lock.recovery.letters import Letter

LONGEST_ERROR: Final = 2000

LOST: Final = "lost"
PUT_BACK: Final = "put back"


class News:
    """Of one run. Nothing is made while nobody listens: most tasks are quicker than that."""

    def __init__(self, listeners: facts.Listeners, task: str, request: Any) -> None:
        """`request`: a Context, in the child or of the parent's request. It is not kept: what hangs on
        it may have this."""
        self.run: Final[str] = request.id or ""
        self._listeners = listeners
        self._task = task
        self._worker = request.hostname or ""
        self._attempt = (request.retries or 0) + 1
        self._custom = request.headers
        self._named: facts.RunName | None = None

    def started(self, fence: int, takeovers: int, waited: timedelta) -> None:
        if self._listeners:
            self._tell(
                facts.RunStarted,
                attempt=self._attempt,
                fence=fence,
                takeovers=takeovers,
                waited=waited,
            )

    def ended(
        self,
        outcome: str,
        fence: int,
        took: timedelta | None = None,
        *,
        error: object = None,
        retry_in: timedelta | None = None,
    ) -> None:
        if self._listeners:
            self._tell(
                facts.RunEnded,
                attempt=self._attempt,
                fence=fence,
                outcome=outcome,
                took=took,
                error=_text_of(error) if isinstance(error, BaseException) else None,
                retry_in=retry_in,
            )

    def skipped(self, reason: str, by: str) -> None:
        if self._listeners:
            self._tell(facts.RunSkipped, reason=reason, by=by)

    def copy_ignored(self, outcome: str | None) -> None:
        if self._listeners:
            self._tell(facts.CopyIgnored, outcome=outcome)

    def kept(self, reason: str, by: str) -> None:
        if self._listeners:
            self._tell(facts.RunKept, reason=reason, by=by)

    def lease_may_be_lost(self, key: str, fence: int) -> None:
        if self._listeners:
            self._tell(facts.LeaseMayBeLost, key=key, fence=fence)

    def overdue(self, expected: timedelta) -> None:
        if self._listeners:
            self._tell(facts.RunOverdue, expected=expected)

    def _tell(self, kind: type[facts.Fact], **said: Any) -> None:
        if self._named is None:
            custom = self._custom or {}
            entry, slot = custom.get(headers.ENTRY), headers.read_slot(custom.get(headers.SLOT))
            self._named = facts.RunName(self.run, self._task, entry, slot)
        fact: Any = kind
        self._listeners.tell(fact(at=datetime.now(UTC), run=self._named, worker=self._worker, **said))


def tell_of_letter(app: Any, letter: Letter) -> None:
    """Call it when the letter was sent."""
    listeners = listeners_of(app)
    if not listeners:
        return
    run = None
    if letter.run_id is not None:
        slot = headers.read_slot(letter.slot)
        run = facts.RunName(letter.run_id, letter.task or "", letter.entry, slot)
    listeners.tell(
        facts.DeadLettered(at=letter.dead_at, run=run, reason=letter.reason, letter=letter.facts)
    )


def _text_of(error: BaseException) -> str:
    text = redact(f"{type(error).__name__}: {error}")
    return text if len(text) <= LONGEST_ERROR else text[: LONGEST_ERROR - 1] + "…"
