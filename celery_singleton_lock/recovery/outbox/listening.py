"""Hears PostgreSQL tell that a transaction with something for the outbox was committed."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from celery_singleton_lock.databases import Database

from .ordering import channel_of

logger = logging.getLogger(__name__)

_LOOK_UP_S: Final = 1.0
_RECONNECT_S: Final = 5.0
# A server that vanished without a word is noticed within half a minute.
_KEEP_ALIVE: Final = {"keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5}


class Listener:
    """A thread with a connection of its own. Does nothing where there is nothing to hear: then the
    relay looks by itself, now and then."""

    def __init__(self, database: Database, prefix: str, bell: threading.Event) -> None:
        self._engine = database.engine
        self._channel = channel_of(prefix)
        self._bell = bell
        self._stopped = threading.Event()

    def start(self) -> None:
        if self._engine.dialect.driver == "psycopg":
            threading.Thread(target=self._run, name="outbox-listener", daemon=True).start()

    def stop(self) -> None:
        """Within a second."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._listen()
            except Exception as error:  # noqa: BLE001 - the relay looks by itself meanwhile
                logger.debug("outbox_listener_lost error=%s", type(error).__name__)
                self._stopped.wait(_RECONNECT_S)

    def _listen(self) -> None:
        dialect: Any = self._engine.dialect
        args, kwargs = dialect.create_connect_args(self._engine.url)
        options = {**kwargs, **_KEEP_ALIVE, "autocommit": True}
        with dialect.loaded_dbapi.connect(*args, **options) as connection:
            connection.execute(f'LISTEN "{self._channel}"')
            # What was committed before we listened nobody told us of.
            self._bell.set()
            while not self._stopped.is_set():
                for _ in connection.notifies(timeout=_LOOK_UP_S, stop_after=1):
                    self._bell.set()
