"""Real `celery beat` processes whose schedule is in Django's database."""

from __future__ import annotations

from pathlib import Path

from tests.django_database import Database

from .beats import Beats

CONFIG = """
    import os
    app = Celery("proj", broker=os.environ["BROKER"])
    app.conf.singleton_slot_ttl = 1.5
    app.conf.result_expires = None
"""


class DjangoBeats(Beats):
    command = "beat -S singleton-django -l INFO --pidfile="

    def __init__(self, place: Path, database: Database, *, broker: str) -> None:
        (place / "proj_settings.py").write_text(
            f"DATABASES = {{'default': {dict(database)!r}}}\n"
            "INSTALLED_APPS = ['django_celery_beat']\n"
            "SECRET_KEY = 'of no use'\n"
            "USE_TZ = True\n"
        )
        super().__init__(place, CONFIG, BROKER=broker, DJANGO_SETTINGS_MODULE="proj_settings")
