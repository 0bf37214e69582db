"""A backfill from the command line: says what will be, asks where it is much, shows how far it is."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from celery_singleton_lock.cli.failing import NOT_ALL, ask, fail
from celery_singleton_lock.cli.printing import print_json, printable
from celery_singleton_lock.cli.times import clock, iso

if TYPE_CHECKING:
    from celery_singleton_lock.beat.schedule import Backfill, Schedule

ASKED_ABOVE: Final = 10
LOOK_EVERY: Final = 0.25
GIVES_UP_AFTER: Final = 10.0
"""Without a replica of beat: it may be starting."""


def fill(
    schedule: Schedule,
    name: str,
    start: datetime,
    end: datetime,
    *,
    wait: bool,
    dry_run: bool,
    why: str,
    yes: bool,
    as_json: bool,
) -> None:
    slots = schedule.slots(name, start, end)
    if not slots:
        fail(f"entry {name!r} has no slot from {clock(start)} to {clock(end)}")
    told = f"{len(slots)} slots of {printable(name)}, from {clock(slots[0])} to {clock(slots[-1])}"
    if dry_run:
        if as_json:
            print_json({"entry": name, "dry_run": True, "slots": [iso(slot) for slot in slots]})
        else:
            click.echo(f"Would publish {told}.")
        return
    if len(slots) > ASKED_ABOVE and not yes:
        ask(f"Publish {told}?", as_json=as_json)
    backfill = schedule.backfill(name, slots[0], slots[-1], why=why)
    if as_json:
        print_json({"entry": name, "dry_run": False, "job": backfill.id, "slots": backfill.slots})
        return
    click.echo(f"Backfill {backfill.id}: {told}.")
    if wait:
        _watch(schedule, backfill, slots)


def _watch(schedule: Schedule, backfill: Backfill, slots: Sequence[datetime]) -> None:
    """Until all is published; the waiting may be broken off, and the work goes on."""
    alone_since: float | None = None
    with click.progressbar(length=len(slots), label="published", show_eta=True) as bar:
        done = 0
        while True:
            if all(job.id != backfill.id for job in schedule.jobs()):
                bar.update(len(slots) - done)
                return
            position = schedule.position_of(backfill)
            now_done = bisect_right(slots, position) if position else 0
            bar.update(now_done - done)
            done = now_done
            if schedule.replicas():
                alone_since = None
            elif alone_since is None:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > GIVES_UP_AFTER:
                break
            time.sleep(LOOK_EVERY)
    fail("no replica of beat is alive: it is done when one starts", NOT_ALL)
