"""Django in the process of the tests, on a database that each test chooses."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from celery_singleton_lock.testing.servers import PostgresServer

Database = Mapping[str, Any]


def set_up() -> None:
    """Import models after this only."""
    if not settings.configured:
        settings.configure(
            DATABASES={"default": in_file(Path(":memory:"))},
            INSTALLED_APPS=["django_celery_beat"],
            LOGGING_CONFIG=None,
            USE_TZ=True,
        )
        django.setup()


def in_file(path: Path) -> Database:
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(path), "OPTIONS": {"timeout": 20}}


def on_server(server: PostgresServer) -> Database:
    url = urlsplit(server.url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.path.lstrip("/"),
        "USER": url.username or "",
        "PASSWORD": url.password or "",
        "HOST": url.hostname,
        "PORT": url.port,
        "OPTIONS": {"connect_timeout": 3},
    }


def use(database: Database) -> None:
    """Talk to this database from now on, and have the tables there."""
    set_up()
    leave()
    connections.settings["default"] = connections.configure_settings({"default": dict(database)})[
        "default"
    ]
    del connections["default"]
    call_command("migrate", verbosity=0)


def leave() -> None:
    """Close what is open, before the database goes away."""
    connections["default"].close()
