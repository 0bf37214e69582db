"""A worker outlives its broker, also when it has messages aside."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def close_without_a_word(connection: Any) -> None:
    """Let nothing that goes wrong in closing this connection end the worker.

    kombu's Redis transport gives back what is not acknowledged when it closes, through a connection
    that is gone by then, and fails with an AttributeError, which Celery does not expect: the worker
    exits. It happens with every message that waits in the worker: a retry, an ETA, a run put aside. The
    broker delivers them again, as it would have done anyway.
    """
    close = connection.close

    def close_quietly() -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001 - it is given up anyway
            logger.warning("broker_connection_not_closed error=%r", error)

    connection.close = close_quietly
