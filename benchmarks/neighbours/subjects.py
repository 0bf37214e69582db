"""Who is compared, and how each wants to be set up."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final


@dataclass(frozen=True, slots=True)
class Subject:
    """`config` and `task` are Python: what its users write into the module of their app."""

    name: str
    package: str
    config: str = ""
    task: str = "@app.task(name='job', acks_late=True, reject_on_worker_lost=True)"
    options: tuple[str, ...] = ()
    """Of ``celery beat``."""
    replicas: int = 2
    """Of beat."""
    prepare: str = ""
    """Python that is run once, before anything is started."""

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


OURS: Final = "ours"
SCHEDULE_FILE: Final = ("-s", "{place}/schedule-{number}")
DJANGO: Final = """
import django
from django.conf import settings

settings.configure(
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": PLACE + "/beat.db",
            "OPTIONS": {"timeout": 20},
        }
    },
    INSTALLED_APPS=["django_celery_beat"],
    LOGGING_CONFIG=None,
    USE_TZ=True,
)
django.setup()
app.conf.beat_scheduler = "django_celery_beat.schedulers:DatabaseScheduler"
"""

BEATS: Final = (
    Subject(
        OURS,
        "celery_singleton_lock",
        "app.conf.beat_scheduler = 'celery_singleton_lock:SingletonScheduler'",
    ),
    Subject(
        "RedBeat",
        "redbeat",
        "app.conf.beat_scheduler = 'redbeat.RedBeatScheduler'\napp.conf.redbeat_redis_url = URL",
    ),
    # Quick to fail over, at the price of duplicates when a burst takes longer than the lock.
    Subject(
        "RedBeat, lock of 5 s",
        "redbeat",
        "app.conf.beat_scheduler = 'redbeat.RedBeatScheduler'\napp.conf.redbeat_redis_url = URL\n"
        "app.conf.redbeat_lock_timeout = 5\napp.conf.beat_max_loop_interval = 1",
    ),
    Subject("stock beat, twice", "celery", options=SCHEDULE_FILE),
    Subject(
        "django-celery-beat, twice",
        "django_celery_beat",
        DJANGO,
        prepare="from django.core.management import call_command\ncall_command('migrate', verbosity=0)",
    ),
)
ONE_BEAT: Final = (Subject("stock beat, alone", "celery", options=SCHEDULE_FILE, replicas=1),)

LOCKS: Final = (
    Subject(
        OURS,
        "celery_singleton_lock",
        "from celery_singleton_lock import SingletonTask\napp.conf.singleton_lock_ttl = 4\n"
        "app.conf.beat_scheduler = 'celery_singleton_lock:SingletonScheduler'",
        "@app.task(name='job', base=SingletonTask)",
    ),
    Subject(
        "celery-singleton",
        "celery_singleton",
        "from celery_singleton import Singleton\napp.conf.singleton_backend_url = URL",
        "@app.task(name='job', base=Singleton, lock_expiry=EXPIRY,"
        " acks_late=True, reject_on_worker_lost=True)",
    ),
    Subject(
        "celery-once",
        "celery_once",
        "from celery_once import QueueOnce\n"
        "app.conf.ONCE = {'backend': 'celery_once.backends.Redis',"
        " 'settings': {'url': URL, 'default_timeout': EXPIRY or 3600}}",
        "@app.task(name='job', base=QueueOnce, once={'graceful': True},"
        " acks_late=True, reject_on_worker_lost=True)",
    ),
    Subject(
        "celery-heimdall",
        "celery_heimdall",
        "from celery_heimdall import HeimdallTask",
        "@app.task(name='job', base=HeimdallTask, acks_late=True, reject_on_worker_lost=True,"
        " heimdall={'unique': True, 'unique_raises': False, 'unique_timeout': EXPIRY or 3600})",
    ),
)
