"""The numbers of this process, if the settings ask for them."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from celery_singleton_lock.leases import LeaseStore, open_store
from celery_singleton_lock.settings import Settings

if TYPE_CHECKING:
    from .metrics.counts import Counts
    from .metrics.measured_store import Measures
    from .metrics.recorder import Recorder

logger = logging.getLogger(__name__)


class Metrics:
    def __init__(self) -> None:
        from .metrics.counts import Counts
        from .metrics.measured_store import Measures
        from .metrics.recorder import Recorder

        self.counts: Final[Counts] = Counts()
        self.measures: Final[Measures] = Measures(self.counts)
        self.recorder: Final[Recorder] = Recorder(self.counts)


_made: list[Metrics | None] = []
_making: Final = threading.Lock()


def metrics_of(settings: Settings) -> Metrics | None:
    """The metrics of this process, one for all of its apps; None where nobody could ask for them."""
    if settings.http is None:
        return None
    with _making:
        if not _made:
            _made.append(_new_metrics())
        return _made[0]


def _new_metrics() -> Metrics | None:
    try:
        return Metrics()
    except ImportError as error:
        logger.warning(
            "metrics_not_installed reason=%s: pip install 'celery-singleton-lock[metrics]'", error
        )
        return None


def open_measured_store(settings: Settings) -> LeaseStore:
    """The lease store of these settings, which is measured if there are metrics."""
    store = open_store(
        settings.lock_url,
        prefix=settings.key_prefix,
        timeout=settings.store_timeout,
        drift=settings.clock_drift,
    )
    metrics = metrics_of(settings)
    if metrics is None:
        return store
    from .metrics.measured_store import measured

    return measured(store, metrics.measures)
