"""django-celery-beat's database scheduler, on any number of replicas.

Needs the extra ``django``, and Django to be set up: import it by its name in ``beat_scheduler`` only.
"""

from importlib.util import find_spec

from celery_singleton_lock.core.errors import ConfigurationError

if find_spec("django_celery_beat") is None:
    raise ConfigurationError(
        "django-celery-beat is not installed: pip install 'celery-singleton-lock[django]'"
    )

from .scheduler import SingletonDatabaseScheduler

__all__ = ["SingletonDatabaseScheduler"]
