"""``celery -A app singleton streams``: parse, call, print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options
from .failing import NOT_ALL, fail, telling_errors, telling_errors_of_changes
from .parameters import Seconds
from .printing import print_json, print_table

if TYPE_CHECKING:
    from celery_singleton_lock.streams import ChangeStream


@click.group("streams")
def streams() -> None:
    """Streams of changes that this application drains."""


@streams.command("list")
@options.as_json
@click.pass_context
@telling_errors
def list_streams(context: click.Context, as_json: bool) -> None:
    """Show each stream, its shards, and how much is pending."""
    from celery_singleton_lock.streams import streams_of

    found = [_facts(each) for _, each in sorted(streams_of(context.obj.app).items())]
    if as_json:
        print_json({"streams": found})
        return
    print_table(("STREAM", "SHARDS", "PENDING", "CHANGING"), [tuple(each.values()) for each in found])
    if not found:
        click.echo("This app has no streams, or nothing that -A imports makes them.", err=True)


@streams.command("reshard")
@click.argument("name")
@click.option(
    "--shards", type=click.IntRange(1), required=True, metavar="N", help="How many there shall be."
)
@click.option(
    "--wait", type=Seconds(), default=60.0, show_default=True, metavar="SECONDS",
    help="For those at work to end their batches, and for old shards to be drained.",
)  # fmt: skip
@options.required_reason
@options.as_json
@click.pass_context
@telling_errors_of_changes
def reshard(
    context: click.Context, name: str, shards: int, wait: float, reason: str, as_json: bool
) -> None:
    """Give a stream another number of shards, and leave no change out.

    Waits until nobody is at any shard, and keeps all others out meanwhile. With Redis the changes that
    are in the old shards are drained before those that come after: that is done by your workers, and
    goes on by itself if this command ends before.
    """
    from celery_singleton_lock.core.errors import LockNotAcquired
    from celery_singleton_lock.recovery.audit import record, whoami
    from celery_singleton_lock.streams import streams_of

    stream = streams_of(context.obj.app).get(name)
    if stream is None:
        fail(f"this app has no stream {name!r}: see `streams list`")
    before = stream.shards
    try:
        stream.change_shards(shards, wait=wait)
    except LockNotAcquired as error:
        fail(f"nothing was changed: somebody is at a shard ({error.holder}). Raise --wait")
    record("stream_resharded", whoami(), stream=name, before=before, now=shards, reason=reason)
    is_done = stream.wait_until_changed(wait)
    if as_json:
        print_json({**_facts(stream), "before": before})
    elif is_done:
        click.echo(f"{name}: {before} shards before, {shards} now.", err=True)
    else:
        click.echo(f"{name}: old shards are not drained yet: it goes on by itself.", err=True)
    if not is_done:
        raise SystemExit(NOT_ALL)


def _facts(stream: ChangeStream) -> dict[str, object]:
    return {
        "stream": stream.name,
        "shards": stream.shards,
        "pending": stream.pending,
        "changing": stream.is_changing,
    }
