"""`SingletonTask`: a Celery task of which each run is executed once, and one run of a job at a time."""

from __future__ import annotations

import inspect
import logging
import os
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, Final

from celery import signals, states
from celery._state import get_current_task
from celery.app.task import Task, get_actual_ignore_result
from celery.exceptions import Ignore, Reject, Retry

from celery_singleton_lock.observability.installing import observe
from celery_singleton_lock.recovery.retry import GIVE_UP, RetryPolicy, decide
from celery_singleton_lock.settings.broker import split_brokers, visibility_timeout
from celery_singleton_lock.settings.hiding import hide_secrets

from .asking import seen_run
from .attempt import Attempt
from .calls import apply_unique
from .current_run import Run
from .options import OPTIONS, TaskOptions, refuse_unknown_options
from .outcomes import KeptAside
from .parts import parts_of
from .retry_producer import confirming
from .unique import UniqueKey, signature_of

logger = logging.getLogger(__name__)

CELERYS_RETRY_DELAY_S: Final = 180.0
_CONSUMER_STEPS: Final = (
    "celery_singleton_lock.worker.poison:PoisonStep",
    "celery_singleton_lock.worker.acknowledging:AcknowledgingStep",
    "celery_singleton_lock.worker.unfinished_results:UnfinishedResultsStep",
)
_CELERYS_NAMES: Final = frozenset(vars(Task))

hide_secrets()


class SingletonTask(Task):  # type: ignore[misc]
    """Use it as ``@app.task(base=SingletonTask)``. Every option has a default that does what you would
    expect; docs/tasks.md has them all."""

    abstract = True
    Request = "celery_singleton_lock.worker.request:SingletonRequest"

    # Delivering again is safe here, and it is what makes a takeover work.
    acks_late = True
    reject_on_worker_lost = True

    # Celery's own, with better values: 2, 4, 8... seconds, jittered, up to ten minutes.
    retry_backoff: Any = 2
    retry_backoff_max: Any = 600
    retry_jitter: Any = True
    default_retry_delay: Any = None

    unique_on: Any = None
    lock_key: Any = None
    lock_ttl: Any = None
    lock_at_least: Any = None
    lock_at_most: Any = None
    lock_wait: Any = None
    overlap: Any = None
    on_duplicate: Any = None
    expect_within: Any = None
    when_store_down: Any = None
    on_lease_lost: Any = None
    dead_letter: Any = None
    max_deliveries: Any = None
    lock_when_eager: Any = None

    singleton_options: ClassVar[TaskOptions]
    singleton_unique: ClassVar[UniqueKey]
    singleton_consumer: Any = None
    """The worker's consumer, in its parent process."""
    _tracks_started = False

    # Definition

    @classmethod
    def on_bound(cls, app: Any) -> None:
        super().on_bound(app)
        name = cls.name or cls.__name__
        refuse_unknown_options(name, _written_names(cls), _CELERYS_NAMES.__contains__)
        cls.singleton_options = TaskOptions.read(name, {each: _option(cls, each) for each in OPTIONS})
        cls.singleton_unique = UniqueKey(name, _signature(cls), cls.singleton_options)
        # By their names: who only calls tasks needs nothing of a worker.
        app.steps["worker"].add("celery_singleton_lock.worker.preparing:PreparingStep")
        app.steps["consumer"].update(_CONSUMER_STEPS)
        observe(app)
        if cls.singleton_options.on_duplicate is not None:
            # Only here: for all others a call costs what it costs in Celery.
            cls.apply_async = apply_unique
        # A copy of a finished run must not turn its state back to STARTED: Celery would write it
        # before anybody is asked.
        cls._tracks_started = cls._tracks_started or bool(cls.track_started)
        cls.track_started = False

    def start_strategy(self, app: Any, consumer: Any, **kwargs: Any) -> Any:
        """Called in the parent process of a worker, for each connection to the broker."""
        parts = parts_of(app)
        self.singleton_options.check_with(parts.settings, self.name)
        if parts.remembrance is not None:
            parts.remembrance.ledger.ensure_usable()
        if self.singleton_consumer is None:
            self._warn_of_long_retries(app)
        self.singleton_consumer = consumer
        return super().start_strategy(app, consumer, **kwargs)

    def _warn_of_long_retries(self, app: Any) -> None:
        options = app.conf.broker_transport_options
        timeout = visibility_timeout(split_brokers(app.conf.broker_url), options).total_seconds()
        longest = self.longest_backoff()
        if timeout and longest > timeout:
            logger.warning(
                "retry_outlives_visibility_timeout task=%s longest_s=%g visibility_timeout_s=%g: the "
                "broker delivers a retry again while it waits; raise visibility_timeout in "
                "broker_transport_options, or lower retry_backoff_max",
                self.name, longest, timeout,
            )  # fmt: skip

    def longest_backoff(self) -> float:
        if self.default_retry_delay is not None:
            return float(self.default_retry_delay)
        policy = self._retry_policy(None)
        if policy.max_retries == 0:
            return 0.0
        last = decide(policy, (policy.max_retries or 65) - 1, 1.0)
        return 0.0 if last == GIVE_UP else last.seconds

    # Execution, in Celery's trace

    @property
    def current_run(self) -> Run:
        """The run that is being executed. In a direct call, and in eager mode, one without a lock."""
        request = self.request
        attempt: Attempt | None = getattr(request, "singleton_attempt", None)
        return attempt.run if attempt is not None else seen_run(self.name, request)

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Get the leases. One that overrides this should call it."""
        super().before_start(task_id, args, kwargs)
        self._begin(self.request)

    def _begin(self, request: Any) -> Attempt:
        known: Attempt | None = getattr(request, "singleton_attempt", None)
        if known is not None:
            return known
        options = self.singleton_options
        locks = not request.is_eager or options.lock_when_eager
        parts = parts_of(self.app) if locks else None
        attempt = Attempt(self, request, options, self.singleton_unique, parts)
        request.singleton_attempt = attempt
        attempt.begin()
        if self._tracks_started and not request.is_eager and attempt.skipped is None:
            self._mark_started(request)
        return attempt

    def _mark_started(self, request: Any) -> None:
        if not get_actual_ignore_result(self, request):
            about = {"pid": os.getpid(), "hostname": request.hostname}
            self.backend.store_result(request.id, about, states.STARTED, request=request)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        request = self.request
        if request.called_directly:
            return super().__call__(*args, **kwargs)
        # Here too, for a task whose own before_start does not call ours.
        attempt = self._begin(request)
        if attempt.has_called_body:
            # The body calls its own task.
            return super().__call__(*args, **kwargs)
        attempt.has_called_body = True
        # Celery's mark for a request whose body was called: a direct call inside it has its own.
        request._protected = 1
        if attempt.skipped is not None:
            return attempt.skipped
        if attempt.committed is not None:
            return attempt.committed.result
        return attempt.call(lambda: self._call_body(attempt, args, kwargs))

    def _call_body(self, attempt: Attempt, args: Any, kwargs: Any) -> Any:
        # Celery wraps `run` for autoretry; the delay of that wrapper may be nothing at all.
        body: Callable[..., Any] = getattr(self, "_orig_run", None) or self.run
        try:
            return body(*args, **kwargs)
        except Retry as by_hand:
            if attempt.retrying is not None or self.request.is_eager:
                raise
            # Raised, but published by nobody: Celery would acknowledge the message and forget it.
            raise self.retry(exc=by_hand.exc, **_when(by_hand)) from by_hand
        except (Ignore, Reject):
            raise
        except Exception as error:
            if attempt.is_lease_lost(error) or not self._retries_by_itself(error):
                raise
            raise self._autoretry(error) from error

    # Calls

    def apply_async_on_commit(
        self,
        session: Any,
        args: Any = None,
        kwargs: Any = None,
        *,
        key: str | None = None,
        **options: Any,
    ) -> Any:
        """`apply_async`, if and when the transaction of `session` is committed: see `outbox.send`."""
        # Only who has a database needs it.
        from celery_singleton_lock.recovery.outbox.sending import send

        return send(session, self, args, kwargs, key=key, **options)

    # Retries

    def _retries_by_itself(self, error: Exception) -> bool:
        retried = tuple(getattr(self, "autoretry_for", ()))
        return isinstance(error, retried) and not isinstance(
            error, tuple(getattr(self, "dont_autoretry_for", ()))
        )

    def _autoretry(self, error: Exception) -> Retry:
        options = dict(getattr(self, "retry_kwargs", None) or {})
        if (most := self.__dict__.pop("override_max_retries", None)) is not None:
            options["max_retries"] = most
        if "countdown" not in options and "eta" not in options and self._backs_off_by_itself():
            options["countdown"] = self._backoff(options.get("max_retries"))
        return self.retry(exc=error, **options)

    def _backs_off_by_itself(self) -> bool:
        """As in Celery: what autoretry was told of a backoff goes before `default_retry_delay`."""
        told = type(self).retry_backoff is not SingletonTask.retry_backoff
        return bool(self.retry_backoff) and (told or self.default_retry_delay is None)

    def _backoff(self, max_retries: int | None) -> float:
        policy, chance = self._retry_policy(max_retries), random.random()  # nosec B311 # noqa: S311 - jitter
        decision = decide(policy, self.request.retries, chance)
        return 0.0 if decision == GIVE_UP else decision.seconds

    def _retry_policy(self, max_retries: int | None) -> RetryPolicy:
        first_s = max(1.0, float(self.retry_backoff)) if self.retry_backoff else CELERYS_RETRY_DELAY_S
        return RetryPolicy(
            max_retries=self.max_retries if max_retries is None else max_retries,
            first_s=first_s,
            longest_s=float(self.retry_backoff_max),
            jitter=bool(self.retry_jitter),
        )

    def retry(
        self,
        args: Any = None,
        kwargs: Any = None,
        exc: Any = None,
        throw: bool = True,
        eta: datetime | None = None,
        countdown: float | None = None,
        max_retries: int | None = None,
        **options: Any,
    ) -> Any:
        """As Celery's, but: without a delay it backs off; a lost lease and a Reject are not retried;
        where the next attempt cannot be published, the message is kept and not dropped."""
        request = self.request
        attempt: Attempt | None = getattr(request, "singleton_attempt", None)
        if isinstance(exc, Reject | Ignore) or (attempt is not None and attempt.is_lease_lost(exc)):
            raise exc
        if attempt is not None:
            attempt.ensure_run_not_lost()
        if eta is None and countdown is None:
            fixed = self.default_retry_delay
            countdown = self._backoff(max_retries) if fixed is None else fixed
        try:
            with confirming(self.app, is_eager=request.is_eager) as confirmed:
                options = {**confirmed, **options}
                super().retry(args, kwargs, exc, True, eta, countdown, max_retries, **options)
        except Retry as retrying:
            if retrying.sig is not None:
                retrying.sig.options.pop("producer", None)  # it goes no further
            if attempt is not None:
                attempt.publishes_retry(retrying)
            if throw:
                raise
            return retrying
        except Reject as unpublished:
            if attempt is not None:
                attempt.put_back()
            raise KeptAside("not published", repr(unpublished.reason)) from unpublished


def current_run() -> Run | None:
    """The run of the task that is being executed in this thread; None outside of a `SingletonTask`."""
    task = get_current_task()
    return task.current_run if isinstance(task, SingletonTask) else None


@signals.task_postrun.connect(weak=False, dispatch_uid="celery_singleton_lock")  # type: ignore[untyped-decorator]
def _end_attempt(sender: Any, state: str | None = None, retval: Any = None, **_: Any) -> None:
    # Not in a hook of the task: those are for users to override.
    if isinstance(sender, SingletonTask):
        attempt: Attempt | None = getattr(sender.request, "singleton_attempt", None)
        if attempt is not None:
            attempt.end(state, retval)


def _option(cls: type[SingletonTask], name: str) -> Any:
    # A function in a class becomes a method of its instances, which lock_key is not meant to be.
    value = inspect.getattr_static(cls, name)
    return value.__func__ if isinstance(value, staticmethod) else value


def _written_names(cls: type[SingletonTask]) -> list[str]:
    names: list[str] = []
    for each in cls.__mro__:
        if each is SingletonTask:
            break
        names.extend(name for name in vars(each) if not name.startswith("_"))
    return names


def _signature(cls: type[SingletonTask]) -> inspect.Signature:
    body = inspect.getattr_static(cls, "run")
    if isinstance(body, staticmethod):
        return signature_of(body.__func__, is_method=False)
    return signature_of(body, is_method=True)


def _when(retrying: Retry) -> dict[str, Any]:
    when = retrying.when
    if when is None:
        return {}
    return {"eta": when} if isinstance(when, datetime) else {"countdown": when}
