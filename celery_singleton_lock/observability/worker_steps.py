"""What a worker does to be seen, in its parent process: steps of its blueprints."""

from __future__ import annotations

from functools import wraps
from typing import Any, Final

from celery.bootsteps import StartStopStep
from celery.worker import state
from celery.worker.control import control_command

from celery_singleton_lock.settings import Settings

from . import log_level
from .health import Pulse
from .inner_beat import InnerBeat
from .listening import tracing_module
from .replica import Replica, replica_of

EVERY_S: Final = 1.0


class ObservingStep(StartStopStep):  # type: ignore[misc]
    """Of the worker: hears what the log level is to be; serves health and metrics, where
    ``singleton_http`` is set."""

    label = "Observing"

    def __init__(self, w: Any, **kwargs: Any) -> None:
        super().__init__(w, **kwargs)
        self._replica: Replica | None = replica_of(w.app)
        # Steps are made before any is started, and so before the pool forks.
        log_level.prepare()
        control_command(name=log_level.COMMAND, args=[("level", str)])(log_level.set_level)
        if self._replica is not None and self._replica.metrics is not None:
            self._replica.metrics.counts.share()
            tasks = w.app.tasks.items()
            ours = [name for name, task in tasks if hasattr(task, "singleton_options")]
            self._replica.metrics.recorder.expect(ours)
        settings = Settings.from_app(w.app)
        if self._replica is not None and kwargs.get("beat"):
            stuck_after = settings.stuck_after.total_seconds()
            self._replica.expect_beat(InnerBeat(lambda: w.beat, stuck_after))
        if settings.tracing:
            tracing_module().trace_runs()

    def start(self, w: Any) -> None:
        if self._replica is not None:
            self._replica.begin("worker")

    def stop(self, w: Any) -> None:
        if self._replica is not None:
            self._replica.end("worker")

    terminate = stop


class PulseStep(StartStopStep):  # type: ignore[misc]
    """Of the consumer: whether it has a connection, and comes round. While it has none it tries to get
    one, for as long as it takes: alive, and not ready."""

    label = "Pulse"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, c: Any, **kwargs: Any) -> None:
        super().__init__(c, **kwargs)
        replica = replica_of(c.app)
        self.enabled = replica is not None
        self._is_connected = False
        if replica is None:
            return
        stuck_after = Settings.from_app(c.app).stuck_after.total_seconds()
        self._pulse = Pulse("the consumer of the worker", stuck_after)
        self._consumer = c
        replica.health.alive_if("consumer", self._why_stuck)
        replica.health.ready_if("broker", self._why_no_broker)

    def start(self, c: Any) -> None:
        self._is_connected = True
        self._pulse.beat()
        if c.hub is not None:
            # Ended with the connection, as all timers that are begun here.
            c.timer.call_repeatedly(EVERY_S, self._pulse.beat)
        elif not hasattr(c.perform_pending_operations, "singleton_pulse"):
            # A loop that waits has its timers in another thread: they would go on without it.
            c.perform_pending_operations = self._beating(c.perform_pending_operations)

    def stop(self, c: Any) -> None:
        self._is_connected = False
        self._pulse.rest()

    def _beating(self, operations: Any) -> Any:
        @wraps(operations)
        def beat_and_perform() -> None:
            self._pulse.beat()
            operations()

        beat_and_perform.singleton_pulse = self._pulse  # type: ignore[attr-defined]
        return beat_and_perform

    def _why_stuck(self) -> str | None:
        # Where tasks run in the consumer's own thread (solo), or it waits for a free greenlet, a long
        # task is no reason to end it.
        if state.active_requests and not self._hands_tasks_over():
            return None
        return self._pulse.why_stuck()

    def _hands_tasks_over(self) -> bool:
        """Whether the consumer goes on while tasks run, however many."""
        pool = type(self._consumer.pool).__module__.rpartition(".")[2]
        return pool == "thread" or (pool == "prefork" and self._consumer.hub is not None)

    def _why_no_broker(self) -> str | None:
        return None if self._is_connected else "it is not connected to the broker"
