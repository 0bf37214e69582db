"""Four processes want one lease. Who has it after its holder is killed? And after the holder slept?

::

    python -m example_project.demo

It brings its own server, and takes about ten seconds. `compete` is what you would write yourself; the
rest runs it in four processes at once, kills one, stops one, and tells what comes of it.
"""

from __future__ import annotations

import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Final

from celery import Celery

from celery_singleton_lock import (
    Held,
    LeaseLost,
    LeaseRequest,
    LeaseStore,
    Record,
    open_store,
    singleton_lock,
)
from celery_singleton_lock.testing.servers import RedisServer, ServerMissing

from .stage import Cast, Demo, DemoFailed, Event

NAMES: Final = ("ada", "bob", "cleo", "dan")
TTL: Final = 2.0
"""Seconds that a lease outlives a holder who died. In earnest one would leave it at 30."""


def compete(url: str, demo: Demo) -> None:
    """Wait for the lease, work under it, give it back."""
    app = Celery(broker=url)
    app.conf.singleton_slot_ttl = 1.5  # a server that is silent for a third of it is given up
    demo.tell("asks")
    try:
        with singleton_lock("nightly-report", app=app, ttl=TTL, wait=60) as lease:
            demo.tell("holds", lease.fence)
            try:
                while not demo.has_enough(within=0.05):
                    lease.ensure_held()  # before each step that must not be done twice
                demo.tell("is done", lease.fence)
            except LeaseLost as lost:
                # Here one stops. We only leave the block, to see that this does no harm.
                demo.tell("is told", lost.fence)
    except LeaseLost as lost:
        demo.tell("is refused", lost.fence)


@dataclass(frozen=True, slots=True)
class Tale:
    """What was seen. All that the summary says is computed from it."""

    holders: tuple[Event, Event, Event, Event]
    handover: float
    takeover_from_killed: float
    takeover_from_stopped: float
    told: Event
    told_after: float
    refused: Event
    holder_after_refusal: str


def play(cast: Cast, store: LeaseStore) -> Tale:
    cast.narrate("All four ask for the lease. One gets it, and keeps it alive; the others wait.")
    first = cast.wait_for("holds")
    for _ in NAMES:
        cast.wait_for("asks")
    visit(cast, store)

    time.sleep(TTL / 2)  # long enough for a renewal
    cast.narrate(f"{first.who} gives the lease back. Whoever waits is called, and need not poll.")
    cast.tell_enough(first.who)
    done = cast.wait_for("is done")
    second = cast.wait_for("holds")

    time.sleep(TTL / 2)
    cast.narrate(f"{second.who} is killed. The lease stays behind until its ttl is over.")
    killed_at = cast.send_signal(second.who, signal.SIGKILL)
    third = cast.wait_for("holds")

    time.sleep(TTL / 2)
    cast.narrate(f"{third.who} is stopped. It cannot renew the lease, nor notice that time goes by.")
    stopped_at = cast.send_signal(third.who, signal.SIGSTOP)
    fourth = cast.wait_for("holds")

    cast.narrate(f"{third.who} goes on, and knows nothing of {fourth.who} yet.")
    woken_at = cast.send_signal(third.who, signal.SIGCONT)
    told = cast.wait_for("is told")
    refused = cast.wait_for("is refused")
    holder_after_refusal = holder_by(store, cast)
    cast.say("server", f"says that {holder_after_refusal} holds the lease, as before")
    cast.tell_enough(fourth.who)
    cast.wait_for("is done")

    return Tale(
        holders=(first, second, third, fourth),
        handover=second.at - done.at,
        takeover_from_killed=third.at - killed_at,
        takeover_from_stopped=fourth.at - stopped_at,
        told=told,
        told_after=told.at - woken_at,
        refused=refused,
        holder_after_refusal=holder_after_refusal,
    )


def visit(cast: Cast, store: LeaseStore) -> None:
    """Ask as `singleton_lock` does, one layer down: that others hold it is an answer, no error."""
    request = LeaseRequest(record_in(store).key, "a visitor", timedelta(seconds=TTL))
    [answer] = store.acquire([request])
    if not isinstance(answer, Held):
        raise DemoFailed(f"a visitor asked for a lease that was held, and was answered {answer}")
    left = answer.remaining.total_seconds()
    cast.say(
        "visitor", f"asks too, and is answered: Held by {holder_by(store, cast)}, {left:.1f} s left"
    )


def holder_by(store: LeaseStore, cast: Cast) -> str:
    """Who holds the lease by the word of the server: every holder leaves a note there."""
    return cast.name_of(record_in(store).note["pid"])


def record_in(store: LeaseStore) -> Record:
    [record] = store.scan()
    return record


def summary(tale: Tale) -> str:
    first, second, third, fourth = (holder.who for holder in tale.holders)
    fences = " < ".join(str(holder.fence) for holder in tale.holders)
    return (
        f"{first} gave the lease back, and {second} had it {tale.handover * 1000:.1f} ms later. "
        f"{second} was killed, and {third} took over after {tale.takeover_from_killed:.2f} s; "
        f"{third} was stopped, and {fourth} took over after {tale.takeover_from_stopped:.2f} s: the "
        f"ttl is {TTL:g} s. {third} was told LeaseLost {tale.told_after * 1000:.1f} ms after it went "
        f"on, its release was refused, and {tale.holder_after_refusal} kept the lease. The holders "
        f"were {first}, {second}, {third}, {fourth}, with growing fences: {fences}. Write the fence "
        "beside what you change, refuse a smaller one, and not even a holder that does not look can "
        "do harm."
    )


def faults(tale: Tale) -> Iterator[str]:
    """What did not go as promised."""
    _, _, third, fourth = tale.holders
    if {holder.who for holder in tale.holders} != set(NAMES):
        yield "not everybody has held the lease"
    if any(earlier.fence >= later.fence for earlier, later in pairwise(tale.holders)):
        yield "the fences do not grow"
    # Half a ttl more than promised, for a machine that has other things to do.
    if max(tale.takeover_from_killed, tale.takeover_from_stopped) > 1.5 * TTL:
        yield f"a takeover took much longer than the ttl of {TTL:g} s"
    if (tale.told.who, tale.told.fence) != (third.who, third.fence):
        yield f"it was not {third.who} who was told of its loss"
    if (tale.refused.who, tale.refused.fence) != (third.who, third.fence):
        yield f"it was not {third.who} who was refused"
    if tale.holder_after_refusal != fourth.who:
        yield f"{fourth.who} lost its lease when {third.who} gave back its own"


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends in order, as Ctrl-C does
    print(f"{len(NAMES)} processes, one lease with a ttl of {TTL:g} s, and an embedded Valkey server")
    try:
        with (
            RedisServer() as server,
            closing(open_store(server.url)) as store,
            Cast(NAMES, compete, server.url) as cast,
        ):
            tale = play(cast, store)
    except KeyboardInterrupt:
        print("\ninterrupted; all that was started is ended")
        return 130
    except (DemoFailed, ServerMissing) as error:
        print(f"\nthe demo failed: {error}", file=sys.stderr)
        return 1
    print("\n" + textwrap.fill(summary(tale), 88))
    wrong = list(faults(tale))
    print("\n" + ("\n".join(f"WRONG: {fault}" for fault in wrong) or "All as promised."))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
