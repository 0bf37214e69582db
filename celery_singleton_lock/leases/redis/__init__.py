"""Leases in Redis and Valkey: a single server, Sentinel or Cluster."""

from .store import RedisLeaseStore

__all__ = ["RedisLeaseStore"]
