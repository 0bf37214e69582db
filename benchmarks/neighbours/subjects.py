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

    @property
    def is_installed(self) -> bool:
        return find_spec(self.package) is not None


OURS: Final = "celery-singleton-lock"

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
    Subject("stock beat, two of them", "celery", options=("-s", "{place}/schedule-{number}")),
)

LOCKS: Final = (
    Subject(
        OURS,
        "celery_singleton_lock",
        "from celery_singleton_lock import SingletonTask\napp.conf.singleton_lock_ttl = 4",
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
