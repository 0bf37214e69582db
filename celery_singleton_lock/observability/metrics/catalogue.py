"""Every metric: the one place where its name, meaning and labels are written down. The docs page, the
dashboard and the alert rules are checked against it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

TASK: Final = "task"
ENTRY: Final = "entry"

QUICK: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds, for calls over a network."""
SLOW: Final = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds, for what people wait for."""


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """`name` is what a query asks for; of a histogram, without ``_bucket``, ``_sum`` and ``_count``."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    doc: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, doc: str, *labels: str) -> Metric:
    return Metric(f"singleton_{name}_total", "counter", doc, labels)


def _gauge(name: str, doc: str, *labels: str) -> Metric:
    return Metric(f"singleton_{name}", "gauge", doc, labels)


def _histogram(name: str, doc: str, buckets: tuple[float, ...], *labels: str) -> Metric:
    return Metric(f"singleton_{name}_seconds", "histogram", doc, labels, buckets)


# Beat

SLOTS_PUBLISHED: Final = _counter("slots_published", "Slots that the broker has taken.", ENTRY)
SLOTS_MISSED: Final = _counter(
    "slots_missed", 'Slots that will not be published: "too old" or "refused".', ENTRY, "reason"
)
SLOTS_PUBLISHED_AGAIN: Final = _counter(
    "slots_published_again", "Slots whose run nobody had started in time, and which were sent again.",
    ENTRY,
)  # fmt: skip
SLOT_LAG: Final = _histogram("slot_lag", "From the time of a slot to its publishing.", SLOW)
RUNS_PUBLISHED_AGAIN: Final = _counter(
    "runs_published_again", "Runs whose worker died, and which were sent again.", TASK
)
RUNS_LEFT_TO_BROKER: Final = _counter(
    "runs_left_to_broker", "Runs whose worker died, and which only the broker can send again.", TASK
)
TROUBLE: Final = _gauge("trouble", "1 while a beat waits for this part: store or broker.", "part")
LAST_TICK: Final = _gauge("beat_last_tick_timestamp_seconds", "When beat last ended a tick.")
MEMBERS: Final = _gauge("beat_members", "Beat replicas that are alive, by their heartbeats.")

# Workers

RUNS_STARTED: Final = _counter("runs_started", "Attempts whose body was called.", TASK)
RUNS_ENDED: Final = _counter(
    "runs_ended",
    "Attempts that are over: succeeded, failed, retried, ignored, rejected, revoked, lost, put back.",
    TASK,
    "outcome",
)
RUN_DURATION: Final = _histogram("run", "How long an attempt took.", SLOW, TASK)
RUNS_IN_PROGRESS: Final = _gauge("runs_in_progress", "Attempts that go on now.", TASK)
RUNS_TAKEN_OVER: Final = _counter(
    "runs_taken_over", "Attempts at a run that a dead worker had begun.", TASK
)
RUNS_SKIPPED: Final = _counter(
    "runs_skipped", 'Runs not executed: "overlap", "waited too long" or "duplicate".', TASK, "reason"
)
RUNS_KEPT: Final = _counter(
    "runs_kept", "Times that a message was kept in a worker, to be offered again.", TASK, "reason"
)
COPIES_IGNORED: Final = _counter("copies_ignored", "Messages of runs that were that far already.", TASK)
RUNS_OVERDUE: Final = _counter("runs_overdue", "Runs that took longer than expect_within.", TASK)
LEASES_LOST: Final = _counter("leases_lost", "Leases that a run may have lost while it ran.", TASK)
DEAD_LETTERS_SENT: Final = _counter("dead_letters", "Dead letters that were written.", TASK, "reason")
DEAD_LETTERS: Final = _gauge("dead_letters_waiting", "Dead letters in the queue.")

# The ledger

HISTORY_LOST: Final = _counter(
    "history_lost", "Facts that history lacks, because the database was away for too long."
)

# The outbox

OUTBOX: Final = _gauge("outbox", "Rows of the outbox: pending, held or dead.", "state")
OUTBOX_OLDEST: Final = _gauge("outbox_oldest_seconds", "How long the first that is pending waits.")

# Leases and their store

ACQUISITIONS: Final = _counter(
    "lease_acquisitions",
    "Leases asked for. granted; again (its owner had it); held by somebody else: contention; done.",
    "kind",
    "result",
)
TAKEOVERS: Final = _counter("lease_takeovers", "Leases granted that a holder had let run out.", "kind")
WAIT: Final = _histogram(
    "lease_wait",
    "From the first refusal to the grant. run: since a worker first kept its message, until it began.",
    SLOW,
    "kind",
)
HOLD: Final = _histogram("lease_hold", "From grant to release.", SLOW, "kind")
RENEWALS: Final = _counter("lease_renewals", "Renewals: renewed or lost.", "kind", "result")
STORE_CALL: Final = _histogram("store_call", "How long the store took to answer.", QUICK, "call")
STORE_ERRORS: Final = _counter("store_errors", "Calls that the store did not answer.", "call")
MEMORY_LOSSES: Final = _counter("store_memory_losses", "Times that the store may have forgotten.")

# A replica

READY: Final = _gauge("ready", "1 if the replica is ready, as /readyz says.")
INFO: Final = _gauge("replica_info", "Always 1.", "role", "version")

METRICS: Final[tuple[Metric, ...]] = tuple(
    each for each in tuple(globals().values()) if isinstance(each, Metric)
)
BY_NAME: Final = {each.name: each for each in METRICS}
