"""Leases in a SQL database: PostgreSQL, MariaDB, MySQL, or SQLite on one host."""

from .store import SqlLeaseStore

__all__ = ["SqlLeaseStore"]
