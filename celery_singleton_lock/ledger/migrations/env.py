"""Called by Alembic, with the connection that `Schema.upgrade` gives it."""

from alembic import context

from celery_singleton_lock.ledger.migrations.turn import take_turn
from celery_singleton_lock.ledger.schema import VERSION_TABLE, is_ours
from celery_singleton_lock.ledger.tables import metadata

attributes = context.config.attributes
connection = attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    include_name=is_ours,
    # SQLite has it too, if the driver is kept from committing: see `databases.Sqlite`.
    transactional_ddl=connection.dialect.name in ("postgresql", "sqlite"),
    on_version_apply=lambda step, **_: attributes["applied"].extend(step.up_revision_ids),
)
with context.begin_transaction(), take_turn(connection):
    context.run_migrations()
connection.commit()
