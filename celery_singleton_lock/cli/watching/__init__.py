"""``celery -A app singleton watch``: a live view in the terminal."""

from .command import watch as watch
