"""What is promised of speed, and what of it is not kept yet: nowhere else is either said.

A promise is a bound of a ratio of two costs that are measured side by side, or of a figure that means
something by itself. `make bench` measures every one of them. It fails when one is missed that is not
among the `KNOWN_MISSES`: that is something new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Unit = Literal["seconds", "bytes", "round trips", "claims a slot", "% of a core", "commands/s"]


@dataclass(frozen=True, slots=True)
class Promise:
    """`at_most` is of a ratio; with a `unit` it is of the figure itself."""

    name: str
    at_most: float
    page: str
    """Of the documentation: where what is promised here is explained."""
    why: str
    """Where the bound comes from."""
    unit: Unit | None = None


_CHEAPER: Final = "a call for many is worth having if each of them costs a tenth"
_LISTING: Final = "somebody waits for the page: a twentieth of a second on a million rows is at once"
_TASK: Final = "about what others add that take a lock, and promise none of the rest"

LEASE: Final = Promise(
    "a lease, to bare SET NX and EVALSHA",
    1.25,
    "leases",
    "redis-py's own Lock, which has no fence, costs more than this",
)
BATCH_AFAR: Final = Promise("1,000 leases in a call, 1 ms away: acquire", 0.1, "leases", _CHEAPER)
BATCH_AFAR_BOTH: Final = Promise(
    "1,000 leases in a call, 1 ms away: with release", 0.1, "leases", _CHEAPER
)
BATCH_NEAR: Final = Promise("1,000 leases in a call, a core each: acquire", 0.1, "leases", _CHEAPER)
BATCH_NEAR_BOTH: Final = Promise(
    "1,000 leases in a call, a core each: with release", 0.1, "leases", _CHEAPER
)
RENEWAL: Final = Promise(
    "round trips to renew 1,000 leases, to one by one",
    0.001,
    "leases",
    "one thread renews all leases of a process",
)
QUORUM_LEASE: Final = Promise(
    "five nodes: a lease, to bare SET NX on one",
    5.0,
    "redlock",
    "five nodes are five times the work, for one thread",
)
QUORUM_AFAR: Final = Promise(
    "five nodes: 1,000 in a call, 1 ms away: acquire", 0.1, "redlock", _CHEAPER
)
QUORUM_AFAR_BOTH: Final = Promise(
    "five nodes: 1,000 in a call, 1 ms away: with release", 0.1, "redlock", _CHEAPER
)
QUORUM_NEAR: Final = Promise(
    "five nodes: 1,000 in a call, a core for them: acquire", 0.1, "redlock", _CHEAPER
)
QUORUM_NEAR_BOTH: Final = Promise(
    "five nodes: 1,000 in a call, a core for them: with release", 0.1, "redlock", _CHEAPER
)

BURST: Final = Promise(
    "10,000 entries due, to a loop of send_task",
    0.5,
    "beat",
    "leases included: nobody should wait longer for beat than for a loop that anybody would write",
)
BURST_ROUND_TRIPS: Final = Promise(
    "round trips to the store for them, to one each",
    0.002,
    "beat",
    "they grow with batches, not with entries",
)
SHARED_BURST: Final = Promise(
    "10,000 entries due, two replicas to one",
    1.0,
    "beat",
    "a replica more must not slow the others down",
)
FIRST_TICK: Final = Promise(
    "first tick with 100,000 entries, to stock beat's",
    1.0,
    "beat",
    "a restart is no slower than Celery's own",
)
FIRST_TICK_MEMORY: Final = Promise(
    "memory with 100,000 entries, to stock beat's", 1.0, "beat", "and needs no larger machine"
)
IDLE_CPU: Final = Promise(
    "CPU of an idle replica, three with 10,000 entries",
    0.5,
    "beat",
    "replicas are worth having if they are free",
    "% of a core",
)
IDLE_COMMANDS: Final = Promise(
    "commands of all three, idle",
    5.0,
    "beat",
    "replicas are worth having if they are free",
    "commands/s",
)
LAG: Final = Promise(
    "lag of a slot, p99, three replicas, 1,000 entries",
    0.150,
    "beat",
    "from the slot to the consumer; nobody sees less",
    "seconds",
)
CLAIMS: Final = Promise(
    "claims a slot, 50 replicas, in virtual time",
    1.2,
    "beat",
    "they know whose turn it is, and do not fight for every slot",
    "claims a slot",
)

TASKS: Final[Mapping[tuple[str, str], Promise]] = {
    (pool, results): Promise(
        f"a task, {pool}, results {results}, to plain Celery", 1.15, "tasks", _TASK
    )
    for pool in ("solo", "prefork -c2")
    for results in ("kept", "ignored")
}
TASK_ROUND_TRIPS: Final = Promise(
    "round trips to the store for a task", 2.0, "tasks", "one to start, one to finish", "round trips"
)
CALL: Final = Promise(
    "apply_async, to plain Celery",
    1.02,
    "tasks",
    "the call does nothing: the lease is taken by the worker",
)
CALL_ON_DUPLICATE: Final = Promise(
    "apply_async with on_duplicate, to plain Celery",
    1.3,
    "tasks",
    "less than others take that look for equal calls",
)

HISTORY: Final = Promise(
    "a task with history, to one without",
    1.1,
    "ledger",
    "history is written in batches, off the way of a run",
)
LISTINGS: Final[Mapping[str, Promise]] = {
    name: Promise(f"p95 of a million runs: {name}", 0.05, "ledger", _LISTING, "seconds")
    for name in (
        "the newest",
        "a page in the middle",
        "of an entry",
        "failed ones of a task",
        "missed",
        "slowest",
        "the last 20 of each of 100 entries",
        "one run",
    )
}
OUTBOX: Final = Promise(
    "a row through the outbox, to what is allowed for it",
    1.0,
    "outbox",
    "2,000 rows a second, or 0.8 of a loop of send_task, whichever is less",
)
COMMIT_TO_BROKER: Final = Promise(
    "from the commit to the queue, p50",
    0.05,
    "outbox",
    "the relay is woken, and does not poll",
    "seconds",
)

PROMISES: Final = (
    LEASE, BATCH_AFAR, BATCH_AFAR_BOTH, BATCH_NEAR, BATCH_NEAR_BOTH, RENEWAL,
    QUORUM_LEASE, QUORUM_AFAR, QUORUM_AFAR_BOTH, QUORUM_NEAR, QUORUM_NEAR_BOTH,
    BURST, BURST_ROUND_TRIPS, SHARED_BURST, FIRST_TICK, FIRST_TICK_MEMORY,
    IDLE_CPU, IDLE_COMMANDS, LAG, CLAIMS,
    *TASKS.values(), TASK_ROUND_TRIPS, CALL, CALL_ON_DUPLICATE,
    HISTORY, *LISTINGS.values(), OUTBOX, COMMIT_TO_BROKER,
)  # fmt: skip

KNOWN_MISSES: Final[Mapping[Promise, str]] = {
    HISTORY: (
        "At its bound: 1.05 to 1.16 was seen. A row for each run, and the database that writes it, on"
        " the two cores that also have the worker and both servers, with nothing left over."
    ),
}
"""Each with its reason. One that is kept again is to be taken from here: the benchmark says so."""
