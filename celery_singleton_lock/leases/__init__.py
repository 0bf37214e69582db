"""The one primitive: a lease, on any store. See `LeaseStore`."""

from .base import LeaseStore, Watch
from .opening import open_store

__all__ = ["LeaseStore", "Watch", "open_store"]
