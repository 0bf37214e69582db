"""django-celery-beat's database scheduler, on any number of replicas.

Needs the extra ``django``, and Django to be set up: import it by its name in ``beat_scheduler`` only.
"""

from .scheduler import SingletonDatabaseScheduler

__all__ = ["SingletonDatabaseScheduler"]
