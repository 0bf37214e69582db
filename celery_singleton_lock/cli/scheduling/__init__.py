"""``celery -A app singleton schedule``: look at the schedule, and change it while beat runs."""

from __future__ import annotations

import click

from .defining import add_entry, change_entry, remove_entry
from .jobs import cancel_job, list_jobs
from .listing import list_entries, show_entry
from .turning import backfill_entry, pause_entry, resume_entry, trigger_entry


@click.group()
def schedule() -> None:
    """Look at the schedule, and change it while beat runs. Replicas see a change within a second."""


for command in (
    list_entries,
    show_entry,
    add_entry,
    change_entry,
    remove_entry,
    pause_entry,
    resume_entry,
    trigger_entry,
    backfill_entry,
    list_jobs,
    cancel_job,
):
    schedule.add_command(command)
