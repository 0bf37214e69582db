"""Pages for Flower: the schedule, locks, runs and dead letters, in its own navigation and looks.

Start Flower by ``celery -A app singleton flower``, or write two lines into its ``flowerconfig.py``::

    from celery_singleton_lock.flower import install
    install()
"""

from __future__ import annotations

from celery_singleton_lock.core.errors import ConfigurationError


def install() -> None:
    """Add the pages to Flower, in this process, before it starts. Once or often: it is the same.

    Raises `ConfigurationError` where Flower is not installed.
    """
    try:
        from .installing import add_pages
    except ModuleNotFoundError as missing:
        if missing.name not in ("flower", "tornado"):
            raise
        raise ConfigurationError(
            "Flower is not installed: pip install 'celery-singleton-lock[flower]'"
        ) from missing
    add_pages()
