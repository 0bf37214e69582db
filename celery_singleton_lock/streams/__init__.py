"""Streams of changes, drained by any number of instances, one at a time for each part of a stream."""

import sqlalchemy as sa

from celery_singleton_lock.ledger.stream_tables import StreamShardRow
from celery_singleton_lock.ledger.tables import add_tables_to

from .redis_changes import RedisChanges
from .stream import Batch, ChangeStream, streams_of
from .table_changes import TableChanges, bucket_of

__all__ = [
    "Batch",
    "ChangeStream",
    "RedisChanges",
    "TableChanges",
    "add_tables",
    "bucket_of",
    "streams_of",
]


def add_tables(metadata: sa.MetaData) -> None:
    """Make the table that `TableChanges` needs part of your own metadata; see `outbox.add_tables`."""
    add_tables_to(metadata, StreamShardRow)
