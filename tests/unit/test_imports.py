"""What is imported, and what not, by whom."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("brought_along", ["celery", "kombu"])
def test_package_alone_brings_no_celery_along(brought_along: str) -> None:
    program = f"import sys, celery_singleton_lock; sys.exit({brought_along!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


def test_task_class_brings_no_worker_along() -> None:
    program = (
        "import sys; from celery_singleton_lock import SingletonTask; from celery import Celery\n"
        "app = Celery(broker='memory://')\n"
        "@app.task(base=SingletonTask, lazy=False)\n"
        "def body(): ...\n"
        "sys.exit('celery_singleton_lock.worker.request' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
