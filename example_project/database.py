"""The database of the shop, which all of its processes share."""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import Engine, create_engine, event
from sqlalchemy.orm import Session

from .app import DATABASE_URL


@cache
def engine() -> Engine:
    made = create_engine(DATABASE_URL)
    if made.dialect.name == "sqlite":
        event.listen(made, "connect", _share_the_file)
    return made


def new_session() -> Session:
    return Session(engine())


def _share_the_file(connection: Any, _: object) -> None:
    # Readers and one writer at a time do not shut each other out, and who must wait does so.
    connection.executescript(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; PRAGMA busy_timeout = 30000;"
    )
