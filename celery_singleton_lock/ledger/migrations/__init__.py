"""The tables' history, for Alembic. A revision adds and never takes away what the last version used, so
that the tables can be upgraded while workers of that version run."""
