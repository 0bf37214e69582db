"""What a lock alone cannot do: remember. History, claims and what rests on them, in a SQL database."""

from . import outbox_tables as outbox_tables
from . import stream_tables as stream_tables
from .opening import Ledger, ledger_of, open_ledger, required_ledger_of
from .tables import Base, metadata

__all__ = ["Base", "Ledger", "ledger_of", "metadata", "open_ledger", "required_ledger_of"]
