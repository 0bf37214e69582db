"""One attempt at a run inside Celery's trace: from the request to its leases, and to an outcome."""

from __future__ import annotations

import logging
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from datetime import timedelta
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final

from celery import states
from celery.app.task import get_actual_ignore_result
from celery.exceptions import Reject, Retry, WorkerShutdown, WorkerTerminate
from kombu.utils.compat import detect_environment

from celery_singleton_lock.core.clock import boottime
from celery_singleton_lock.core.errors import (
    LeaseLost,
    LedgerUnavailable,
    StoreUnavailable,
    WorkersDied,
)
from celery_singleton_lock.core.facts import Listeners
from celery_singleton_lock.core.headers import SLOT, read_slot
from celery_singleton_lock.core.models import FINISHED
from celery_singleton_lock.core.signals import lease_lost, lease_overdue, run_retrying, run_skipped
from celery_singleton_lock.settings import Settings

from .abort import Abort
from .asking import ask_of, delay_of, is_in_canvas, seen_run, task_key_of, writes_letters
from .current_run import Run, Skipped
from .early import take_early
from .execution import Execution, Terms
from .news import LOST, PUT_BACK, News
from .options import TaskOptions
from .outcomes import CopyIgnored, KeptAside, RunSkipped
from .parts import Parts
from .run import (
    FAILED,
    IGNORED,
    LETTER_DUE,
    REJECTED,
    RETRIED,
    SKIPPED,
    SUCCEEDED,
    Ask,
    Copy,
    Keep,
    Poisoned,
    Skip,
    Start,
    pause_before_offer,
)
from .unique import UniqueKey

if TYPE_CHECKING:
    from .claiming import Committed, Outrun, Over
    from .effects import Effects

logger = logging.getLogger(__name__)


class Attempt:
    """Lives as long as the request it is about, and hangs on it."""

    def __init__(
        self, task: Any, request: Any, options: TaskOptions, unique: UniqueKey, parts: Parts | None
    ) -> None:
        """`parts` None: without a lock."""
        self.retrying: Retry | None = None
        """What `Task.retry` raised, after it had published the next attempt."""
        self.skipped: Skipped | None = None
        self.committed: Committed | None = None
        """What an execution before has done: the body is not called again."""
        self.has_called_body = False
        self._task = task
        # It hangs on its request: a cycle of the two would be left to the garbage collector, which
        # takes as long for the objects of a task as it takes to get its leases.
        self._seen = weakref.ref(request)
        self._options = options
        self._parts = parts
        self._remembrance = None if parts is None else parts.remembrance
        self._asked: Ask | None = None
        self._news = News(_NOBODY if parts is None else parts.listeners, task.name, request)
        # Only where asked for: it takes a signal of the process.
        self._abort = Abort() if options.on_lease_lost == "abort" else None
        self._execution: Execution | None = None
        if parts is not None:
            self._execution = self._make_execution(parts, unique)
        self._run: Run | None = None

    @property
    def _request(self) -> Any:
        return self._seen()

    @property
    def run(self) -> Run:
        if self._run is None:
            leases = self._execution.leases if self._execution is not None else None
            self._run = seen_run(
                self._task.name,
                self._request,
                leases,
                effects=self._effects(),
                is_loose=self._parts is None,
            )
        return self._run

    def _effects(self) -> Effects | None:
        if self._remembrance is None or self._asked is None:
            return None
        from .effects import Effects

        return Effects(self._remembrance.ledger, self._asked)

    def _make_execution(self, parts: Parts, unique: UniqueKey) -> Execution:
        terms = _terms(self._options, parts.settings)
        early = take_early(self._request)
        if early is None:
            ask = ask_of(self._task, self._request, self._options, unique, parts)
        else:
            ask = early.ask
        self._asked = ask
        return Execution(
            ask,
            terms,
            parts.store,
            parts.keep_alive,
            memory=None if self._remembrance is None else self._remembrance.memory,
            early=None if early is None else early.answers,
        )

    # Before the body

    def begin(self) -> None:
        """Return if the body is to be called. Otherwise raise what Celery and the parent process do
        instead; where a canvas goes on without it, `skipped` is set."""
        if self._execution is None:
            return
        try:
            verdict = self._ask(self._execution)
        except StoreUnavailable as error:
            self._begin_without_store(error)
            return
        match verdict:
            case Copy(outcome, is_letter_due):
                raise CopyIgnored(outcome, is_letter_due)
            case Keep():
                raise KeptAside.because(verdict)
            case Skip():
                self._skip(verdict)
            case Poisoned(deaths):
                raise WorkersDied(self._task.name, self._request.id, deaths)
            case Start(takeovers=takeovers):
                self._consult(self._execution, takeovers)
                self._news.started(self._execution.fence, takeovers, self._execution.ask.waited)

    def _ask(self, execution: Execution) -> Any:
        begin = partial(execution.begin, self._on_lost, self._on_overdue)
        verdict = begin()
        if not self._request.is_eager:
            return verdict
        # There is no worker that could keep the message: wait here.
        began, offers = boottime(), 0
        while isinstance(verdict, Keep):
            waited = timedelta(seconds=boottime() - began)
            time.sleep(pause_before_offer(verdict, offers, waited, self._options.lock_wait))
            offers += 1
            execution.wait_since(began)
            verdict = begin()
        return verdict

    def _consult(self, execution: Execution, takeovers: int) -> None:
        """Ask the ledger, where the store cannot know."""
        if self._remembrance is None or execution.leases is None:
            return
        fence, since = execution.leases.run.fence, execution.may_be_forgotten_before
        slot = read_slot((self._request.headers or {}).get(SLOT))
        try:
            word = self._remembrance.claiming.ask(execution.ask, fence, takeovers, slot, since)
        except LedgerUnavailable as error:
            if self._is_to_wait(error):
                execution.give_up()
                raise KeptAside("store away", error.ledger) from error
            return
        if word is not None:
            self._heed(word, execution)

    def _heed(self, word: Committed | Over | Outrun, execution: Execution) -> None:
        from .claiming import Outrun, Over

        match word:
            case Outrun(by):
                execution.give_up()
                raise KeptAside("held", by, execution.ask.ttl.total_seconds())
            case Over(outcome):
                is_letter_due = outcome == LETTER_DUE
                execution.finish(outcome, execution.ask.position if is_letter_due else FINISHED)
                raise CopyIgnored(outcome, is_letter_due)
            case _:
                self.committed = word

    def _is_to_wait(self, error: Exception) -> bool:
        """False: the run goes on without what is away."""
        assert self._parts is not None  # nosec B101 # noqa: S101 - for the type checker
        policy = self._options.store_down(self._parts.settings)
        if policy == "fail" or (policy == "wait" and self._request.is_eager):
            raise error
        return policy == "wait"

    def _begin_without_store(self, error: StoreUnavailable) -> None:
        if self._is_to_wait(error):
            raise KeptAside("store away", error.store)
        logger.warning(
            "run_without_lock task=%s run=%s reason=%s", self._task.name, self._request.id, error.reason
        )
        self._execution = None

    def _skip(self, skip: Skip) -> None:
        task, request = self._task, self._request
        self.skipped = Skipped(skip.reason, skip.by)
        logger.info(
            "run_skipped task=%s run=%s reason=%r by=%s", task.name, request.id, skip.reason, skip.by
        )
        run_skipped.send(task=task.name, run=request.id, reason=skip.reason, by=skip.by)
        self._news.skipped(skip.reason, skip.by)
        if request.is_eager or is_in_canvas(request):
            return
        ignores = get_actual_ignore_result(task, request)
        task.backend.mark_as_done(request.id, self.skipped, request, not ignores)
        self._finish(SKIPPED)
        raise RunSkipped(skip.reason, skip.by)

    # Around the body

    def call(self, body: Callable[[], Any]) -> Any:
        """The body's value. `KeptAside` is raised if the run was lost before or meanwhile: then its
        successor writes the result, and this one writes nothing."""
        if self._execution is None:
            return body()
        self._ensure_not_late()
        try:
            with nullcontext() if self._abort is None else self._abort.bounded():
                value = body()
        except (KeptAside, Retry):
            raise
        except Exception as error:
            self._settle(error)
            raise
        except BaseException as error:
            is_shutdown = isinstance(error, WorkerShutdown | WorkerTerminate)
            if isinstance(error, SystemExit | KeyboardInterrupt) and not is_shutdown:
                # Let it run out, and be counted: it may be what ends its workers.
                self._execution.abandon()
            else:
                # A shutdown; or gevent ends a greenlet, for a reason that only the parent knows.
                self._give_up(PUT_BACK)
            raise
        self.ensure_run_not_lost()
        return value

    def _ensure_not_late(self) -> None:
        """A worker that was stopped just after the store had granted it all wakes up here: another one
        may have done the run meanwhile."""
        if self._execution is not None and self._execution.is_late:
            self._give_up(LOST)
            raise KeptAside("lost", "", 0.0)

    def ensure_run_not_lost(self) -> None:
        execution = self._execution
        if execution is not None and execution.has_lost_its_run():
            self._give_up(LOST)
            raise KeptAside("lost", "", execution.ask.ttl.total_seconds())

    def _settle(self, error: Exception) -> None:
        self.ensure_run_not_lost()
        execution = self._execution
        if execution is None or not self.is_lease_lost(error) or execution.has_outlived_its_lock:
            return
        # The job was taken from it, not the run: what it began is to be done again.
        self._give_up(LOST)
        raise KeptAside("lost", "", 0.0) from error

    def is_lease_lost(self, error: BaseException | None) -> bool:
        """Whether it is the loss of a lease of this run: that is nobody's failure."""
        execution = self._execution
        return isinstance(error, LeaseLost) and execution is not None and execution.is_mine(error)

    def publishes_retry(self, retrying: Retry) -> None:
        """Called when the next attempt is on its way."""
        self.retrying = retrying
        run_retrying.send(
            task=self._task.name,
            run=self._request.id,
            attempt=self.run.attempt,
            delay=delay_of(retrying),
            exception=retrying.exc,
        )

    def put_back(self) -> None:
        """Called when the next attempt cannot be published: this one is tried again, with a fence of
        its own."""
        if self._execution is not None:
            self._give_up(PUT_BACK)

    # After the body

    def end(self, state: str | None, value: Any) -> None:
        """Called when all is done that Celery does for a state: the result is stored, callbacks are
        sent. `state` None: the process is on its way out."""
        if self._execution is None or state is None:
            return
        if isinstance(value, KeptAside | CopyIgnored | RunSkipped):
            # There is nothing to record, or it was recorded.
            return
        if self.retrying is not None:
            self._park(self.retrying, value)
        elif state == states.SUCCESS and not self._is_failing():
            if self.skipped is not None:
                self._finish(SKIPPED)
            else:
                self._finish_well()
        elif state == states.IGNORED:
            # Task.replace ignores, too: what replaces it has the same id, and a position beyond.
            self._finish(IGNORED, None, self._execution.ask.position)
        elif state == states.REJECTED and isinstance(value, Reject) and value.requeue:
            self._give_up(PUT_BACK)
        else:
            self._finish_failed(REJECTED if state == states.REJECTED else FAILED, value)

    def _is_failing(self) -> bool:
        """Whether what Celery does for a success went wrong: its result could not be stored, say."""
        return not self._request.is_eager and sys.exc_info()[0] is not None

    def _finish_failed(self, outcome: str, error: object) -> None:
        assert self._execution is not None  # nosec B101 # noqa: S101 - for the type checker
        if writes_letters(self._options, self._request):
            self._finish(LETTER_DUE, error, self._execution.ask.position)
        else:
            self._finish(outcome, error)

    def _finish(self, outcome: str, error: object = None, *position: int) -> None:
        execution = self._execution
        assert execution is not None  # nosec B101 # noqa: S101 - for the type checker
        fence = execution.fence
        is_recorded = execution.finish(outcome, *position)
        self._tell_of_end(outcome, is_recorded, fence, execution.held_for, error)

    def _finish_well(self) -> None:
        execution, parts = self._execution, self._parts
        assert execution is not None  # nosec B101 # noqa: S101 - for the type checker
        if parts is None or not parts.endings.is_open:
            self._finish(SUCCEEDED)
            return
        fence, held_for = execution.fence, execution.held_for
        is_recorded = execution.start_finish(SUCCEEDED)
        # The request may be gone when the answer is there.
        parts.endings.add(lambda: self._tell_of_end(SUCCEEDED, is_recorded(), fence, held_for))

    def _tell_of_end(
        self, outcome: str, is_recorded: bool, fence: int, held_for: timedelta, error: object = None
    ) -> None:
        if not is_recorded:
            logger.warning(
                "run_end_not_recorded task=%s run=%s outcome=%r",
                self._task.name, self._news.run, outcome,
            )  # fmt: skip
        if self.skipped is None:
            self._news.ended(outcome if is_recorded else LOST, fence, held_for, error=error)

    def _park(self, retrying: Retry, error: object) -> None:
        execution = self._execution
        assert execution is not None  # nosec B101 # noqa: S101 - for the type checker
        same_job = True
        if (signature := retrying.sig) is not None:
            args, kwargs = signature.args or (), signature.kwargs or {}
            key = task_key_of(self._task, args, kwargs, self._options)
            same_job = key == execution.ask.task_key
        fence, delay = execution.fence, delay_of(retrying)
        execution.park(RETRIED, delay, same_job=same_job)
        reason = retrying.exc or error
        self._news.ended(RETRIED, fence, execution.held_for, error=reason, retry_in=delay)

    def _give_up(self, why: str) -> None:
        execution = self._execution
        assert execution is not None  # nosec B101 # noqa: S101 - for the type checker
        fence = execution.fence
        execution.give_up()
        self._news.ended(why, fence, execution.held_for)

    # Told by keep-alive, in threads of its own; the request may be gone by then

    def _on_lost(self, loss: LeaseLost) -> None:
        lease_lost.send(task=self._task.name, run=self._news.run, key=loss.key, fence=loss.fence)
        self._news.lease_may_be_lost(loss.key, loss.fence)
        if self._abort is not None and detect_environment() == "default":
            self._abort.now(loss)

    def _on_overdue(self) -> None:
        task, run, expected = self._task.name, self._news.run, self._options.expect_within
        logger.warning("run_overdue task=%s run=%s expected=%s", task, run, expected)
        lease_overdue.send(task=task, run=run, expected=expected)
        if expected is not None:
            self._news.overdue(expected)


_NOBODY: Final = Listeners()


@lru_cache(maxsize=1024)
def _terms(options: TaskOptions, settings: Settings) -> Terms:
    patience = None if options.store_down(settings) == "wait" else options.ttl(settings)
    return Terms(
        remember_for=settings.remember_for,
        at_least=options.lock_at_least,
        at_most=options.lock_at_most,
        expect_within=options.expect_within,
        insist_for=patience,
    )
