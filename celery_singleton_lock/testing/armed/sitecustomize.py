"""Found by a Python process that `KillAt` is to end: see celery_singleton_lock.testing.steps."""

from celery_singleton_lock.testing.steps import arm_from_environment

arm_from_environment()
