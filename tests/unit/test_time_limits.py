"""What hangs is ended and told of, also when it had failed before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HANG = """
import threading
import pytest

@pytest.fixture
def thing_that_never_ends():
    yield
    threading.Event().wait()

@pytest.mark.flaky(reruns=1)
def test_again():
    threading.Event().wait()

def test_end(thing_that_never_ends):
    assert not "fine"
"""


def test_next_try_of_a_test_and_the_end_of_one_that_failed_have_their_time_limit_too(
    tmp_path: Path,
) -> None:
    (tmp_path / "test_hang.py").write_text(HANG)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "conftest", "--timeout=0.3", "test_hang.py"],
        cwd=tmp_path, env=environment | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert "2 failed, 1 error, 1 rerun" in ran.stdout.splitlines()[-1], ran.stdout + ran.stderr
