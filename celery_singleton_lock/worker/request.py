"""`SingletonRequest`: a message in the worker's parent process, to be kept or acknowledged."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, Final

from billiard.einfo import ExceptionWithTraceback
from celery.exceptions import (
    Ignore,
    Retry,
    Terminated,
    TimeLimitExceeded,
    WorkerLostError,
    WorkerTerminate,
)
from celery.platforms import EX_FAILURE
from celery.worker import state
from celery.worker.request import Request

from celery_singleton_lock.core import headers
from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.errors import ConfigurationError
from celery_singleton_lock.core.naming import fresh_name
from celery_singleton_lock.recovery import message_note
from celery_singleton_lock.recovery.letters import FAILED as LETTER_FAILED

from .asking import OURS, ask_of
from .closing import Closing
from .early import ask_early, take_back_early
from .last_letter import LastLetter, letter_for, reason_of
from .news import News
from .options import TaskOptions
from .outcomes import CopyIgnored, KeptAside, RunSkipped
from .parts import parts_of
from .run import FAILED, LETTER_DUE, REVOKED, SUCCEEDED, Keep
from .waiting import Place

logger = logging.getLogger(__name__)

COUNTS: Final[Counter[str]] = Counter()
"""What happened to messages in this process: "kept", "copy", "skipped", "lost"."""

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0

COPY_EVENT: Final = "singleton-copy"
"""Not a task event: those would change the state that monitors show, and the run has one."""


class SingletonRequest(Request):  # type: ignore[misc]
    """Names the execution, so that the child, which gets its leases, and the parent, which may have to
    end them, both can speak for it."""

    _connection_errors: tuple[type[BaseException], ...]

    def __init__(self, message: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(message, *args, **kwargs)
        # What kombu's Redis transport raises, too, for a message whose connection is gone. It is logged
        # then; without this it would end the worker. The broker delivers the message again.
        self._connection_errors = (*self._connection_errors, AttributeError)
        self._told: dict[str, Any] = {
            "execution": f"{self.id}:{fresh_name()}",
            "message": message_note.encode(message),
        }
        request = self._request_dict
        request["properties"] = {**(request.get("properties") or {}), OURS: self._told}
        self.offers = 0
        self.line: object | None = None
        """Where it waits for its job."""
        self._closing: Closing | None = None
        self._letter: LastLetter | None = None
        self._pause_s = FIRST_PAUSE_S
        self._is_cancelled = False

    @property
    def _news(self) -> News:
        return News(parts_of(self.app).listeners, self.task.name, self._context)

    def send_event(self, type: str, **fields: Any) -> None:  # noqa: A002 - its name in Celery
        """With the entry and the slot, where beat has sent it: monitors could not know them."""
        sent = self._request_dict
        for name, header in (("entry", headers.ENTRY), ("slot", headers.SLOT)):
            if header in sent:
                fields[name] = sent[header]
        super().send_event(type, **fields)

    @property
    def _as_asked(self) -> SimpleNamespace:
        """As `ask_of` reads it. To make a Context takes ten times as long."""
        request = self._request_dict
        args, kwargs, _ = self._payload
        return SimpleNamespace(
            id=self.id,
            args=args,
            kwargs=kwargs,
            headers=request.get("headers") or request,
            properties=request["properties"],
            retries=request.get("retries"),
            replaced_task_nesting=request.get("replaced_task_nesting"),
            delivery_info=request.get("delivery_info"),
            hostname=request.get("hostname"),
        )

    def on_accepted(self, pid: int, time_accepted: float) -> None:
        if self.task.acks_late:
            ask_early(self.task, self._as_asked, parts_of(self.app))
        super().on_accepted(pid, time_accepted)

    # What the child says

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:
        error = exc_info.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, KeptAside):
            return self._keep(error.keep)
        self._prepare_end(error, exc_info)
        if isinstance(error, MemoryError):
            # Celery ends the whole worker with it, and the next one, and the next.
            self._end_out_of_memory(exc_info)
        else:
            super().on_failure(exc_info, send_failed_event, return_ok)
        if isinstance(error, CopyIgnored):
            self._tell_of_copy(error)
        elif isinstance(error, RunSkipped):
            COUNTS["skipped"] += 1
            self.send_event("task-skipped", reason=error.reason, by=error.by)
        return None

    def _prepare_end(self, error: BaseException, exc_info: Any) -> None:
        """What must be done before the message may go."""
        task = self.task
        if isinstance(error, CopyIgnored):
            if error.is_letter_due:
                self._owe_letter("its worker ended before the letter was sent", None)
        elif isinstance(error, TimeLimitExceeded):
            self._close_failed(error, exc_info, is_put_back=not task.acks_on_timeout)
        elif isinstance(error, WorkerLostError | SystemExit | KeyboardInterrupt):
            if not task.reject_on_worker_lost:
                self._close_failed(error, exc_info, is_put_back=False)
            elif self._closing is None:
                self._closing = Closing(self, None, is_death=True)
        elif not isinstance(error, Ignore | Retry | Terminated) and not getattr(
            error, "requeue", False
        ):
            self._owe_letter(error, exc_info)

    def _end_out_of_memory(self, exc_info: Any) -> None:
        state.task_ready(self)
        self.acknowledge()
        self.send_event("task-failed", exception=repr(exc_info.exception), traceback=exc_info.traceback)

    def _tell_of_copy(self, copy: CopyIgnored) -> None:
        COUNTS["copy"] += 1
        logger.info("copy_ignored task=%s run=%s outcome=%r", self.task.name, self.id, copy.outcome)
        self.send_event(COPY_EVENT, outcome=copy.outcome)
        self._news.copy_ignored(copy.outcome)

    # Keeping

    def _keep(self, keep: Keep) -> None:
        """Leave the message unacknowledged, and offer it to the pool again after a while. It is neither
        sent again nor given back to the broker: both make more of it."""
        state.task_ready(self)
        if keep.reason == "lost":
            COUNTS["lost"] += 1
            # Which a monitor keeps: the state is another one as soon as the successor begins.
            self.send_event("task-lease-lost", lost_by=self.hostname)
        self._news.kept(keep.reason, keep.by)
        consumer = self.task.singleton_consumer
        if consumer is None or consumer.qos is None:
            self.reject(requeue=True)
            return
        # Nobody executes it: who revokes it now is not to kill a child that has other work by then.
        self.time_start = self.worker_pid = self._apply_result = None
        place = parts_of(self.app).waiting.add(self, keep, consumer)
        if place is Place.WAITS:
            COUNTS["kept"] += 1
        elif place is Place.NOT_NEEDED:
            self.acknowledge()

    @property
    def attempt_name(self) -> tuple[str, int, int]:
        request = self._request_dict
        return self.id, request.get("retries") or 0, request.get("replaced_task_nesting") or 0

    @property
    def execution(self) -> str:
        """Who holds the leases of its run."""
        name: str = self._told["execution"]
        return name

    @property
    def kept_since(self) -> float:
        since: float = self._told.setdefault("kept_since", boottime())
        return since

    # What the parent has to end itself, because the child cannot any more

    def on_timeout(self, soft: bool, timeout: float) -> None:
        if not soft:
            limit = TimeLimitExceeded(timeout)
            self._close_failed(limit, None, is_put_back=not self.task.acks_on_timeout)
        super().on_timeout(soft, timeout)

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:
        self._close(REVOKED)
        super()._announce_revoked(reason, terminated, signum, expired)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        if self.time_start:
            # Before: a greenlet that is killed counts as a success, and is acknowledged at once.
            self._close(REVOKED)
        super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, emit_retry: bool = True) -> None:
        """Called by a signal handler, in a cold shutdown: nothing here may wait."""
        was_running = self.time_start is not None
        self._is_cancelled = was_running
        try:
            super().cancel(pool, signal, emit_retry)
        except NotImplementedError:
            # These pools end no job. Raised in a signal handler, as here by a cold shutdown of the solo
            # pool, this would be the failure of the body that runs. Interrupt it by what it is.
            if was_running and type(pool).__module__ == "celery.concurrency.solo":
                raise WorkerTerminate(EX_FAILURE) from None
            self._is_cancelled = False
            return
        # A greenlet has given up by itself.
        if was_running and not getattr(pool, "is_green", False):
            self._close(None)

    def _success_was_stored(self) -> Any:
        """Asked by Celery about a child that died: what has a result is acknowledged."""
        stored = super()._success_was_stored()
        if stored:
            # It died between its result and its record, and nobody is to take over.
            self._closing = Closing(self, SUCCEEDED)
        return stored

    def _close_failed(self, error: BaseException, exc_info: Any, *, is_put_back: bool) -> None:
        if is_put_back:
            self._close(None)
        elif self.task.singleton_options.dead_letter:
            self._close(LETTER_DUE)
            self._owe_letter(error, exc_info)
        else:
            self._close(FAILED)

    def _close(self, outcome: str | None) -> None:
        """End the run from here; None: it is given up, for another worker to go on with."""
        if self._closing is None:
            self._closing = Closing(self, outcome)
            if outcome is None:
                self._closing.free_later()

    def _owe_letter(self, error: BaseException | str, exc_info: Any) -> None:
        if self._letter is not None or not self.task.singleton_options.dead_letter:
            return
        task, parts = self.task, parts_of(self.app)
        try:
            ask = ask_of(task, self._context, task.singleton_options, task.singleton_unique, parts)
        except (ConfigurationError, TypeError):
            # No key can be made of such arguments. The run has one all the same.
            ask = ask_of(
                task, self._context, TaskOptions(overlap="allow"), task.singleton_unique, parts
            )
        traceback = None if exc_info is None else str(exc_info.traceback)
        reason = reason_of(error) if isinstance(error, BaseException) else LETTER_FAILED
        self._letter = LastLetter(self, letter_for(self, reason, error, traceback), ask, parts)

    # The end of the message

    def acknowledge(self) -> None:
        """Only when all is recorded, and sent, that must be before the message is gone."""
        if self._is_cancelled or self.acknowledged:
            return  # what was cancelled is for another worker
        self._take_back_early()
        if self._is_free_to_go(self.acknowledge):
            if not self._is_acknowledged_with_others():
                super().acknowledge()
            self._free()
            parts_of(self.app).waiting.ended(self)

    def _is_acknowledged_with_others(self) -> bool:
        together = getattr(self.task.singleton_consumer, "singleton_acknowledging", None)
        if together is None or not together.takes(self.message):
            return False
        self.acknowledged = True
        return True

    def _take_back_early(self) -> None:
        """Where Celery has ended the task before it began."""
        take_back_early(self._told)

    def reject(self, requeue: bool = False) -> None:
        self._take_back_early()
        if requeue:
            if self._closing is not None and self._closing.is_death:
                # Before: the next execution is to enter at once.
                self._free()
            super().reject(requeue=True)
        elif not self.acknowledged and self._is_free_to_go(self.reject):
            super().reject(requeue=False)
            self._free()

    def _is_free_to_go(self, again: Callable[[], None]) -> bool:
        """False: not now; `again` is called later."""
        if (self._closing is None or self._closing.is_recorded()) and (
            self._letter is None or self._letter.is_sent()
        ):
            return True
        pause, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        self.task.singleton_consumer.timer.call_after(pause, again)
        return False

    def _free(self) -> None:
        if self._closing is not None:
            self._closing.free_when_gone()
