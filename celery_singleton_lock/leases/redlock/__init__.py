"""Leases over several independent Redis or Valkey servers: held by who has a majority."""

from .store import RedlockLeaseStore

__all__ = ["RedlockLeaseStore"]
